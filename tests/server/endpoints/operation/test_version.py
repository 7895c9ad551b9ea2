"""The versions that are told."""

from importlib.metadata import packages_distributions, version

import httpx
from support.api.described import assert_described

from omnistage.stage_configs.packages import installed


def test_vllm_s_version_is_told_as_its_own_server_tells_it_and_ours_beside_it(
    client: httpx.Client,
) -> None:
    response = client.get("/version")
    (package,) = set(packages_distributions()["vllm"])
    assert response.json() == {"version": version(package), "omnistage": version("omnistage")}
    assert_described(client, response)


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed("no-such-package-of-ours") == ""
    assert installed("no-such-package-of-ours", "httpx") == version("httpx")
