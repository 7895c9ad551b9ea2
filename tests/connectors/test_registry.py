"""What packages register: each by itself, whatever the others do."""

import pytest
from support.installed import Installed

from omnistage.connectors.registry import Registry, Unusable

GROUP = "omnistage.tests"


@pytest.fixture
def registry(installed: Installed) -> Registry[int]:
    installed.package("good-one", {GROUP: {"good": "ONE"}}, "ONE = 1")
    return Registry(GROUP, int)


def test_what_a_package_registers_is_there(registry: Registry[int]) -> None:
    assert registry.names == ["good"]
    assert registry.load("good") == 1
    assert registry.packages("good") == ["good-one 1.0"]
    with pytest.raises(KeyError):
        registry.load("bad")


def test_a_module_is_not_imported_before_it_is_asked_for(
    registry: Registry[int], installed: Installed
) -> None:
    installed.package("bad-one", {GROUP: {"bad": "ONE"}}, "raise SystemExit('imported')")
    assert registry.names == ["bad", "good"]
    assert registry.load("good") == 1


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("ONE = 'one'", "bad_one:ONE is no int"),
        ("TWO = 2", "has no attribute 'ONE'"),
    ],
)
def test_one_that_cannot_be_used_is_told_with_its_package_and_cause(
    registry: Registry[int], installed: Installed, code: str, cause: str
) -> None:
    installed.package("bad-one", {GROUP: {"bad": "ONE"}}, code)
    with pytest.raises(Unusable) as no:
        registry.load("bad")
    assert str(no.value).startswith(f"'bad' of {GROUP} (package bad-one 1.0) cannot be used: ")
    assert cause in str(no.value)
    assert registry.problems() == [str(no.value)]
    assert list(registry.usable()) == [("good", 1)]


def test_a_name_of_two_packages_is_refused_by_the_names_of_both(
    registry: Registry[int], installed: Installed
) -> None:
    for package in ("first-one", "second-one"):
        installed.package(package, {GROUP: {"same": "ONE"}}, "ONE = 1")
    with pytest.raises(Unusable, match="registered more than once: uninstall all but one") as no:
        registry.load("same")
    assert "first-one 1.0" in str(no.value)
    assert "second-one 1.0" in str(no.value)
    assert list(registry.usable()) == [("good", 1)]


def test_metadata_that_is_too_old_is_told() -> None:
    with pytest.raises(Unusable, match=r"no package registers a\.group: install omnistage again"):
        _ = Registry("a.group", int).names


def test_our_own_are_registered_as_those_of_others() -> None:
    families: Registry[object] = Registry("omnistage.families", object)
    assert {"diffusers", "qwen3_omni", "qwen_image", "vllm"} <= set(families.names)
    assert {"inprocess", "shm", "tcp"} <= set(Registry("omnistage.connectors", object).names)
    assert families.packages("vllm")[0].startswith("omnistage ")
