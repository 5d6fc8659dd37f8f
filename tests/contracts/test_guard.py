import pytest
from agl_testing._guard import ContractSuite


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


class Waves:
    def test_rule(self):
        pass


class Weaker(ContractSuite):
    __test__ = False

    def test_rule(self):
        pass


@pytest.mark.parametrize("bases", [(Waves, Rules), (Weaker, Rules), (Rules, Weaker)])
def test_a_rule_cannot_be_overridden_through_another_base(bases):
    with pytest.raises(TypeError, match=r"Lax\.test_rule"):
        type("Lax", bases, {})


def test_another_base_may_come_after_the_rules():
    assert issubclass(type("Strict", (Rules, Waves), {}), Rules)


def test_an_expected_failure_may_come_from_another_base():
    class Honest:
        @pytest.mark.xfail(reason="the backend has no such thing")
        def test_rule(self):
            pass

    assert issubclass(type("Declared", (Honest, Rules), {}), Rules)


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
