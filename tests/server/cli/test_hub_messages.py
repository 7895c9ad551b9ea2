"""Messages about models that are neither a folder nor on the hub, and what the hub is asked."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from huggingface_hub import errors
from typer.testing import CliRunner, Result

from omnistage.server import cli
from omnistage.stage_configs.checkpoint import Checkpoint

FILE = "/{repo_id}/resolve/{revision}/{filename}"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "400"})


def answered(_: str) -> None:
    """The hub answers, with what its download says."""


@contextlib.contextmanager
def running_hub(is_up: bool) -> Iterator[tuple[str, list[str]]]:
    """Yields the address of a hub that knows no model, and what it was asked.

    One that is not up has its port, and refuses connections.
    """
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.send_header("x-error-code", "RepoNotFound")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub, bind_and_activate=False) as server:
        server.server_bind()
        url = f"http://127.0.0.1:{server.server_port}"
        if not is_up:
            yield url, asked
            return
        server.server_activate()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield url, asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["./nosuch", "../nosuch", "/no/such/folder", "~/nosuch"])
@pytest.mark.parametrize("command", ["serve", "plan", "warm", "up"])
def test_a_path_that_is_not_there_is_a_missing_folder_and_no_question_to_the_hub(
    command: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", pytest.fail)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", pytest.fail)
    result = run(command, path)
    assert (result.exit_code, result.output) == (1, f"error: there is no folder {path}\n")


RESPONSE = httpx2.Response(404, request=httpx2.Request("HEAD", "https://hub.example"))
HUB = [
    (
        errors.LocalEntryNotFoundError("make sure your Internet connection is on."),
        "the Hugging Face hub cannot be reached, nor is the model in its cache: correct the path, "
        "or connect this machine",
    ),
    (
        errors.HFValidationError("Repo id must use alphanumeric chars: 'x'."),
        "it is not a valid name on the Hugging Face hub, such as OWNER/NAME",
    ),
    (
        errors.RemoteEntryNotFoundError("404 Client Error", response=RESPONSE),
        "the model of that name on the Hugging Face hub has no config.json",
    ),
    (
        errors.RepositoryNotFoundError("404 Client Error", response=RESPONSE),
        "the Hugging Face hub has no model of that name: correct the name; a model that is "
        "private needs HF_TOKEN in the environment",
    ),
    (
        errors.GatedRepoError("403 Client Error", response=RESPONSE),
        "the Hugging Face hub has the model for those alone who accepted its terms: accept them "
        "on its page, and set HF_TOKEN",
    ),
    (OSError("a proxy\nsays no"), "the Hugging Face hub refuses it: a proxy says no"),
]


@pytest.mark.parametrize(("error", "says"), HUB, ids=[type(one[0]).__name__ for one in HUB])
def test_what_the_hub_refuses_is_told_in_our_own_sentence(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: str, **__: bool) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answered)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    result = run("serve", "nosuchfolder")
    said = f"error: there is no folder 'nosuchfolder' here, and {says}\n"
    assert (result.exit_code, result.output) == (1, said)


@pytest.mark.parametrize("name", ["Small", "smal", "SMALL-image", "small_image"])
def test_a_name_near_an_embedded_model_is_answered_with_the_name_of_that_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: str, **__: bool) -> str:
        raise HUB[0][0]

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answered)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    meant = "small-image" if "image" in name else "small"
    said = run("serve", name).output
    assert said.endswith(f"; did you mean {meant!r}, which comes with omnistage?\n"), said


@pytest.mark.parametrize(
    ("is_up", "says"),
    [
        (False, "the Hugging Face hub cannot be reached"),
        (True, "the Hugging Face hub has no model"),
    ],
)
def test_a_hub_is_asked_once_and_only_one_that_answers_is_asked_for_the_files(
    is_up: bool, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[bool] = []

    def download(*_: str, local_files_only: bool) -> str:
        tries.append(local_files_only)
        if local_files_only:
            raise errors.LocalEntryNotFoundError("no connection")
        raise errors.RepositoryNotFoundError("404 Client Error", response=RESPONSE)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with running_hub(is_up) as (url, asked):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + FILE)
        checkpoint = Checkpoint("a/b")
        for name in ("modules.json", "config.json", "model_index.json"):
            assert not checkpoint.has(name)
    assert says in checkpoint.problem
    assert tries == [not is_up] * 3
    assert asked == (["/a/b/resolve/main/modules.json"] if is_up else [])
    assert not [record for record in caplog.records if "Retrying" in record.message]
