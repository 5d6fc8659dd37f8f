"""Certificates of an authority that exists for a test."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_DAY = dt.timedelta(days=1)


@dataclass
class Files:
    """Names of PEM files."""

    cert: str
    key: str


class Authority:
    """Issues certificates for this machine's loopback address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of a test")])
        made = self._builder(self._name, self._key.public_key(), days=15).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        made = made.add_extension(usage, critical=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def issue(self, name: str = "server", *, days: int = 10, password: bytes = b"") -> Files:
        """Issue a certificate that ends in so many days; one of less than 0 has ended."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = self._builder(subject, key.public_key(), days=days).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        files = Files(str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key"))
        signed = made.sign(self._key, hashes.SHA256()).public_bytes(_PEM)
        Path(files.cert).write_bytes(signed)
        kind = serialization.PrivateFormat.PKCS8
        hidden = (
            serialization.BestAvailableEncryption(password)
            if password
            else serialization.NoEncryption()
        )
        Path(files.key).write_bytes(key.private_bytes(_PEM, kind, hidden))
        return files

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int
    ) -> x509.CertificateBuilder:
        ends = dt.datetime.now(dt.UTC) + days * _DAY
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(ends - 20 * _DAY)
            .not_valid_after(ends)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False
            )
        )
