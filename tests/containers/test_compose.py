"""compose.yaml fits the images, the command line and its documentation."""

import re
from importlib.util import find_spec
from typing import Any

import compose_up
import pytest
from support.faults.chaos import WORKER
from support.repository.command_line import GROUP, parse
from support.repository.containers import (
    ROOT,
    command_of,
    compose,
    environment,
    last,
    ours,
    servers,
    services,
)

from omnistage.server.serve import HANG_UP_S
from omnistage.stage_configs.overrides import any_override

FILES = ["docker/Dockerfile", "docker/Dockerfile.cpu"]
OURS, SERVERS = ours(), servers()
PAGES = OURS.keys() - SERVERS.keys()


def test_every_service_is_in_its_profile() -> None:
    assert {name: service.get("profiles") for name, service in services().items()} == {
        "server": None,
        "page": None,
        "omni": ["gpu"],
        "omni-page": ["gpu"],
        "images": ["images"],
        "images-page": ["images"],
        "webui": ["webui"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_files_that_services_name_exist() -> None:
    for service in services().values():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
            assert service["build"]["context"] == "."
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            there = (ROOT / source).exists() if source.startswith(".") else source in volumes()
            assert there, volume


def volumes() -> dict[str, Any]:
    found: dict[str, Any] = compose()["volumes"]
    return found


def test_images_of_others_have_a_version_and_a_registry_only_where_it_must_be_named() -> None:
    for name, service in services().items():
        if name not in OURS:
            registry = "ghcr.io/" if name == "webui" else ""
            assert re.fullmatch(rf"{registry}[a-z-]+/[a-z-]+:v?\d+\.\d+\.\d+", service["image"])


def test_an_image_is_built_by_one_service_and_is_there_for_those_that_take_it() -> None:
    """Two builds of one name at once fail where Compose exports both."""
    built = {one["image"]: name for name, one in OURS.items() if "build" in one}
    assert len(built) == len([one for one in OURS.values() if "build" in one])
    for service in OURS.values():
        if "build" not in service:
            assert service["pull_policy"] == "never"
            assert built[service["image"]] in service["depends_on"]


ADDRESSES = {
    **dict.fromkeys(SERVERS, "OMNISTAGE_ADDRESS"),
    **dict.fromkeys(PAGES, "OMNISTAGE_PAGE_ADDRESS"),
    "webui": "OMNISTAGE_WEBUI_ADDRESS",
    "prometheus": "OMNISTAGE_MONITORING_ADDRESS",
    "grafana": "OMNISTAGE_MONITORING_ADDRESS",
}


def test_ports_are_on_this_machine_unless_their_own_variable_opens_them_and_clash_nowhere() -> None:
    """To open the API opens neither a page, which has the key, nor the monitoring."""
    outer = []
    for name, service in services().items():
        (port,) = service["ports"]
        found = re.fullmatch(r"\$\{(\w+):-127\.0\.0\.1\}:(\d+):\d+", port)
        assert found, name
        assert found[1] == ADDRESSES[name]
        outer.append(found[2])
    assert len(outer) == len(set(outer))


@pytest.mark.parametrize("name", services())
def test_a_service_that_cannot_start_is_given_up_and_its_log_has_an_end(name: str) -> None:
    service = services()[name]
    assert service["restart"] == "on-failure:3"
    assert service["logging"]["driver"] == "json-file"
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


# Options that a container fixes: its model, its port, and no TLS, which its health check lacks.
FIXED = {"HOST", "PORT", "DRY_RUN", "SSL_CERTFILE", "SSL_KEYFILE", "MODEL"}
HUB = {"HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"}


@pytest.mark.parametrize("name", SERVERS)
def test_every_option_of_serve_can_be_set_by_its_variable(name: str) -> None:
    known = {
        option.envvar or f"OMNISTAGE_{option.name.upper()}"
        for option in GROUP.commands["serve"].params
        if option.param_type_name == "option"
    }
    variables = SERVERS[name]["environment"]
    own = {"CUDA_VISIBLE_DEVICES"} if "deploy" in SERVERS[name] else set()
    assert variables.keys() - own - HUB == known - {f"OMNISTAGE_{one}" for one in FIXED}
    given = {name: value for name, value in variables.items() if value is not None}
    assert given.keys() - own == {"OMNISTAGE_SET"}
    for option in command_of(SERVERS[name]):
        variable = "OMNISTAGE_" + option.removeprefix("--").replace("-", "_").upper()
        assert variable not in variables, "a flag wins over its variable, which would do nothing"


def test_the_example_of_variables_has_each_that_compose_reads_and_no_other() -> None:
    text = (ROOT / ".env.example").read_text()
    listed = re.findall(r"^#?([A-Z_]+)=", text, re.MULTILINE)
    read = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    handed_on = {name for one in SERVERS.values() for name in one["environment"]}
    assert len(listed) == len(set(listed))
    assert set(listed) == (read | handed_on) - {"CUDA_VISIBLE_DEVICES"}
    assert not re.findall(r"^[A-Z_]+=", text, re.MULTILINE), "a copy changes nothing by itself"
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_gpu_servers_take_other_gpus_unless_they_are_given_the_same() -> None:
    found = [
        re.fullmatch(r"\$\{(\w+):-(\d)\}", one["environment"]["CUDA_VISIBLE_DEVICES"])
        for one in SERVERS.values()
        if "deploy" in one
    ]
    gpus = [one.groups() for one in found if one]
    assert gpus == [("OMNISTAGE_OMNI_GPUS", "0"), ("OMNISTAGE_IMAGES_GPUS", "1")]


def test_open_webui_uses_the_server_for_chat_speech_transcripts_and_images() -> None:
    service = services()["webui"]
    variables = service["environment"]
    assert variables["AUDIO_TTS_ENGINE"] == variables["AUDIO_STT_ENGINE"] == "openai"
    for name in ("AUDIO_TTS_", "AUDIO_STT_"):  # which would go to OpenAI otherwise
        assert variables[f"{name}OPENAI_API_BASE_URL"] == variables["OPENAI_API_BASE_URL"]
    for name in ("AUDIO_TTS_", "AUDIO_STT_", "IMAGES_"):
        assert variables[f"{name}OPENAI_API_KEY"] == variables["OPENAI_API_KEY"]
    assert variables["AUDIO_TTS_MODEL"] == variables["AUDIO_STT_MODEL"]
    (url, _) = variables["OPENAI_API_BASE_URL"].split("/v1")
    (default,) = re.findall(r":-([\w-]+)\}", url)
    assert default in SERVERS
    images = re.findall(r"http://([\w-]+):8000/v1", variables["IMAGES_OPENAI_API_BASE_URL"])
    assert images == ["images"]
    assert variables["IMAGE_GENERATION_MODEL"] in command_of(SERVERS["images"])
    (model,) = re.findall(r":-([\w-]+)\}", variables["AUDIO_TTS_MODEL"])
    assert model == compose_up.MODEL  # which it compares with the server's
    assert model in command_of(SERVERS["server"])
    assert "depends_on" not in service  # it starts whichever server runs


@pytest.mark.parametrize("name", OURS)
def test_a_port_is_the_one_that_the_command_listens_on(name: str) -> None:
    (port,) = OURS[name]["ports"]
    inner = port.split(":")[-1]
    command = " ".join(command_of(OURS[name]))
    assert f"--port {inner}" in command
    assert "--host 0.0.0.0" in command
    if name in SERVERS:
        assert last("EXPOSE", OURS[name]["build"]["dockerfile"]).rest == inner


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_room_for_its_channels_and_time_to_end_in_order(name: str) -> None:
    service = SERVERS[name]
    assert re.fullmatch(r"\d+g", service["shm_size"])
    assert service["init"] is True
    first, _, rest = service["environment"]["OMNISTAGE_SET"].partition(" ")
    assert rest == "${OMNISTAGE_SET:-}"  # of several values for one key the last holds
    override = any_override(first)
    assert override.place == ("deadlines", "drain_s")
    stages_s = 15  # each may be asked, and killed in the end
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    assert grace_s >= override.value + HANG_UP_S + stages_s


@pytest.mark.parametrize("name", ["omni", "images"])
def test_a_server_with_a_gpu_gets_it_with_mps(name: str) -> None:
    service = SERVERS[name]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
    capabilities = environment(service["build"]["dockerfile"])["NVIDIA_DRIVER_CAPABILITIES"]
    assert "compute" in capabilities.split(",")  # with it NVIDIA's toolkit brings MPS


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_keeps_models_and_kernels(name: str) -> None:
    mounted = {volume.split(":")[1] for volume in SERVERS[name]["volumes"]}
    assert mounted == set(last("VOLUME", SERVERS[name]["build"]["dockerfile"]).words)


def test_every_server_has_a_page_that_starts_without_waiting_for_a_download() -> None:
    of_page = {}
    for name in PAGES:
        command = command_of(OURS[name])
        host, port = re.fullmatch(  # type: ignore[union-attr]
            r"http://([\w-]+):(\d+)/v1", command[command.index("--url") + 1]
        ).groups()
        assert OURS[name]["depends_on"] == [host]
        assert SERVERS[host]["ports"][0].endswith(f":{port}")
        of_page[name] = host
    assert sorted(of_page.values()) == sorted(SERVERS)


# Commands


def commands() -> dict[str, list[str]]:
    """Every call of our command line in a container file."""
    found = {f"compose {name}": command_of(service) for name, service in OURS.items()}
    found |= {file: last("CMD", file).words for file in FILES}
    return found


@pytest.mark.parametrize("name", commands())
def test_a_command_is_one_of_ours_with_options_that_it_has(name: str) -> None:
    program, command, *arguments = commands()[name]
    assert program == "omnistage"
    parse(command, arguments)


@pytest.mark.parametrize("arguments", [["model", "--prot", "8000"], [], ["model", "--mps", "yes"]])
def test_a_wrong_call_would_be_found(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception, match=r"2|Missing parameter|is not one of") as wrong:
        parse("serve", arguments)
    said = f"{wrong.value} {capsys.readouterr().err}"
    assert re.search(r"there is no --prot|Missing parameter|is not one of", said)


# tools/compose_up.py, which needs a Docker engine


def test_the_check_by_an_engine_kills_a_process_that_there_is() -> None:
    assert f'"{WORKER}"' in compose_up.KILL
    assert find_spec(WORKER) is not None


def test_the_check_by_an_engine_sets_variables_that_compose_reads() -> None:
    read = re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text())
    assert compose_up.OPENED.keys() <= {*read, *SERVERS["server"]["environment"]}
