import pytest

from agl_core.testing._guard import ContractSuite


class Rules(ContractSuite):
    __test__ = False

    def test_rule(self):
        raise NotImplementedError


def test_a_rule_cannot_be_overridden_in_silence():
    with pytest.raises(TypeError, match=r"Lax\.test_rule"):

        class Lax(Rules):
            def test_rule(self):
                pass


def test_a_rule_cannot_be_blanked():
    with pytest.raises(TypeError, match=r"Lax\.test_rule"):

        class Lax(Rules):
            test_rule = None


def test_an_expected_failure_needs_its_reason():
    with pytest.raises(TypeError, match=r"Lax\.test_rule"):

        class Lax(Rules):
            @pytest.mark.xfail
            def test_rule(self):
                pass


def test_a_rule_may_be_declared_unfulfilled():
    class Honest(Rules):
        @pytest.mark.xfail(reason="the backend has no such thing")
        def test_rule(self):
            pass

    assert issubclass(Honest, Rules)


def test_new_tests_may_be_added():
    class More(Rules):
        def test_more(self):
            pass

    assert issubclass(More, Rules)
