"""anmi export --push-to-hub, to a hub on this machine: files stand there, no token does, a refusal is one message."""

from __future__ import annotations

import base64
import http.server
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_export import write_run
from tests.commands import refused
from tests.servers import listening

TOKEN = "hf_" + "s" * 34


class Hub(http.server.BaseHTTPRequestHandler):
    """The requests of an upload; files travel in the commit, as the hub's answer to preupload says.

    there: the files of a public repository that is there before; None: there is none, and it is made as it is asked.
    invalid: what is wrong with a card's head. html: it answers the first request with a page.
    """

    said: list[tuple[str, str, Any]]
    status = 200
    there: list[str] | None = None
    invalid: str | None = None
    html = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        lines = [json.loads(line) for line in body.splitlines()]
        self.said.append((self.path, self.headers["Authorization"], lines))
        url = f"http://{self.headers['Host']}/org/name"
        answer: Any = {"url": url, "commitUrl": f"{url}/commit/1", "commitOid": "1" * 40}
        if "/preupload/" in self.path:
            files = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in lines[0]["files"]]
            answer = {"files": files}
        if self.invalid and "/validate-yaml" in self.path:
            self.answer({"errors": [{"message": self.invalid}]}, 400)
        elif self.there is not None and self.path == "/api/repos/create":
            self.answer({"error": "You already created this model repo", "url": url}, 409)
        else:
            self.answer(answer if self.status == 200 else {"error": "no write access"}, self.status)

    def do_GET(self) -> None:
        self.said.append((self.path, self.headers["Authorization"], []))
        if "/tree/" in self.path:
            names = [".gitattributes", *(self.there or [])]
            self.answer([{"type": "file", "path": name, "size": 1, "oid": "2" * 40} for name in names], 200)
        else:
            self.answer({"id": "org/name", "private": self.there is None}, 200)

    def answer(self, said: Any, status: int) -> None:
        """Send it as JSON."""
        content = b"<html>Sign in</html>" if self.html else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def exported(root: Path, to: Path, port: int, *more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: this one reads at its start that it has no network."""
    words = ["export", "r1", "--root", str(root), "--to", str(to), "--push-to-hub", "org/name", *more]
    own = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-m", "anmi_ray", *words]
    return subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_folder_arrives_whole_and_a_refusal_is_one_message(tmp_path: Path) -> None:
    write_run(tmp_path / "root", until="train")
    handler = type("Handler", (Hub,), {"said": []})
    with listening(server := http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)):
        done = exported(tmp_path / "root", tmp_path / "out", server.server_port)
        assert done.returncode == 0, done.stderr
        assert f"private on the hub: http://127.0.0.1:{server.server_port}/org/name" in done.stdout
        created, *_, (_, _, commit) = handler.said
        assert created[0] == "/api/repos/create"
        assert {key: created[2][0][key] for key in ("name", "organization", "visibility")} == {
            "name": "name",
            "organization": "org",
            "visibility": "private",
        }
        assert {authorization for _, authorization, _ in handler.said} == {f"Bearer {TOKEN}"}
        arrived = {
            one["value"]["path"]: base64.b64decode(one["value"]["content"]) for one in commit if one["key"] == "file"
        }
        files = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
        assert arrived == files
        assert not any(TOKEN.encode() in content for content in files.values())
        handler.status = 403
        done = exported(tmp_path / "root", tmp_path / "again", server.server_port)
    nobody = exported(tmp_path / "root", tmp_path / "third", server.server_port)
    for failed, said in ((done, "the hub refuses: "), (nobody, "cannot be reached: ")):
        assert failed.returncode == 2
        assert said in failed.stderr
        assert "Traceback" not in failed.stderr
        assert TOKEN not in failed.stdout + failed.stderr
    assert (tmp_path / "third" / "config.json").is_file()


def test_a_public_repository_is_called_so_and_loses_files_of_before(tmp_path: Path) -> None:
    write_run(tmp_path / "root", until="train")
    old = ["config.json", "fusion.json", "onnx/model_int8.onnx"]
    handler = type("Handler", (Hub,), {"said": [], "there": old})
    with listening(server := http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)):
        done = exported(tmp_path / "root", tmp_path / "out", server.server_port)
    assert done.returncode == 0, done.stderr
    assert "public on the hub, as its repository is: http" in done.stdout
    assert "private" not in done.stdout
    (commit,) = [lines for path, _, lines in handler.said if "/commit/" in path]
    removed = [one["value"]["path"] for one in commit if one["key"] == "deletedFile"]
    assert removed == ["fusion.json", "onnx/model_int8.onnx"]
    written = {one["value"]["path"] for one in commit if one["key"] == "file"}
    assert written == {file.name for file in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            {"invalid": '"license" is none'},
            '--license: the hub refuses the card\'s metadata: "license" is none remedy: give',
        ),
        ({"invalid": '"model-index" is odd'}, 'README.md: the hub refuses the card\'s metadata: "model-index" is odd'),
        ({"html": True}, "expected an answer of the hub, got"),
    ],
    ids=["licence", "head", "page"],
)
def test_a_card_that_the_hub_refuses_is_one_message(tmp_path: Path, answers: dict[str, Any], said: str) -> None:
    write_run(tmp_path / "root", until="train")
    handler = type("Handler", (Hub,), {"said": [], **answers})
    with listening(server := http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)):
        done = exported(tmp_path / "root", tmp_path / "out", server.server_port, "--license", "mine")
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "out is written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path, _, _ in handler.said if "/commit/" in path]


def test_without_a_token_or_a_name_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "root", until="train")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    command = ("export", "r1", "--root", tmp_path / "root", "--to", tmp_path / "out", "--push-to-hub")
    assert "has no HF_TOKEN" in refused(*command, "org/name")
    assert "ORGANISATION/NAME" in refused(*command, "org/name/more")
    assert not (tmp_path / "out").exists()
