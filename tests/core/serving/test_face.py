"""The package is imported by its face, which loads a server or a client only when one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agl_core import serving


@pytest.mark.parametrize("name", serving.__all__)
def test_every_name_of_the_face_is_there(name: str) -> None:
    assert getattr(serving, name) is not None


def test_the_module_asgi_is_imported_from_the_face_in_a_new_process() -> None:
    code = "from agl_core.serving import asgi; asgi.respond"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match=r"agl_core\.serving.*'nothing'"):
        _ = serving.nothing


def test_keys_are_had_without_loading_a_server_or_a_client() -> None:
    code = (
        "import sys; from agl_core.serving import shared_key; "
        "print(sorted({'uvicorn', 'aiohttp'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[]"
