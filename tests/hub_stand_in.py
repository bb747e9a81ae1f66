"""What `huggingface_hub` needs of a Hub, on loopback: repositories, commits, files, large files, a check of cards.

Answers follow what the client (huggingface_hub 2.4) sends and reads; nothing here is iel's.
"""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_" + "x" * 34


class Hub:
    """`with Hub() as hub:` repositories as {name: {branch: [(commit, {path: content}), ...]}}."""

    def __init__(self):
        self.repos: dict[str, dict[str, list]] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.requested: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        return self.repos[repo][branch][-1][1]

    def commit(self, repo: str, branch: str, files: dict[str, bytes]) -> str:
        history = self.repos[repo].setdefault(branch, [])
        name = hashlib.sha1(f"{repo}{branch}{len(history)}".encode()).hexdigest()
        history.append((name, files))
        return name

    def find(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        branches = self.repos.get(repo, {})
        if revision in branches:
            return branches[revision][-1]
        return next((entry for history in branches.values() for entry in history if entry[0] == revision), None)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    @property
    def known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path).strip("/").split("/")
        self.hub.requested.append(f"{self.command} /{'/'.join(path)}")
        repo = "/".join(path[2:4] if path[0] == "api" else path[:2])
        if repo not in self.hub.repos or (repo in self.hub.private and not self.known):
            return self.answer(401 if not self.known else 404, {"error": "none"}, X_Error_Code="RepoNotFound")
        wanted = path[3] if path[0] != "api" else "/".join(path[5:]) or "main"
        found = self.hub.find(repo, wanted)
        if found is None:
            return self.answer(404, {"error": "none"}, X_Error_Code="RevisionNotFound")
        commit, files = found
        if path[0] == "api":
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            assert parse_qs(urlsplit(self.path).query).get("blobs") == ["true"]
            return self.answer(200, {"id": repo, "sha": commit, "siblings": siblings, "tags": [], "private": False})
        name = "/".join(path[4:])
        if name not in files:
            return self.answer(404, {"error": "none"}, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        etag = hashlib.sha256(files[name]).hexdigest()
        return self.answer(200, files[name], ETag=f'"{etag}"', X_Repo_Commit=commit)

    def do_POST(self):
        path, body = urlsplit(self.path).path.strip("/"), self.body()
        self.hub.requested.append(f"POST /{path}")
        if path == "api/validate-yaml":
            text = json.loads(body)["content"]
            facts = yaml.safe_load(text.split("---")[1])
            wrong = [] if {"license", "tags"} <= facts.keys() else [{"message": "license and tags are missing"}]
            return self.answer(400 if wrong else 200, {"errors": wrong, "warnings": []})
        if not self.known:
            return self.answer(401, {"error": "Invalid username or password."})
        if path == "api/repos/create":
            facts = json.loads(body)
            repo = f"{facts['organization']}/{facts['name']}"
            if repo in self.hub.repos:
                return self.answer(409, {"error": "exists", "url": f"{self.hub.url}/{repo}"})
            self.hub.repos[repo] = {}
            self.hub.commit(repo, "main", {".gitattributes": b""})
            if facts.get("private") or facts.get("visibility") == "private":
                self.hub.private.add(repo)
            return self.answer(200, {"url": f"{self.hub.url}/{repo}", "id": repo})
        parts = path.split("/")
        if path.endswith(".git/info/lfs/objects/batch"):
            actions = [
                {**each, "actions": {"upload": {"href": f"{self.hub.url}/large/{each['oid']}", "header": {}}}}
                for each in json.loads(body)["objects"]
            ]
            return self.answer(200, {"objects": actions, "transfer": "basic"})
        repo, verb, revision = "/".join(parts[2:4]), parts[4], unquote("/".join(parts[5:]))
        if verb == "preupload":
            modes = [
                {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith("safetensors") else "regular"}
                for file in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": [{**mode, "shouldIgnore": False} for mode in modes]})
        if verb == "branch":
            if revision in self.hub.repos[repo]:
                return self.answer(409, {"error": "exists"})
            self.hub.commit(repo, revision, dict(self.hub.files(repo)))
            return self.answer(200, {})
        assert verb == "commit"
        files = dict(self.hub.files(repo, revision))
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.hub.commit(repo, revision, files)
        return self.answer(
            200, {"commitOid": commit, "commitUrl": f"{self.hub.url}/{repo}/commit/{commit}", "pullRequestUrl": None}
        )

    def do_PUT(self):
        content = self.body()
        oid = urlsplit(self.path).path.split("/")[-1]
        assert hashlib.sha256(content).hexdigest() == oid
        self.hub.large[oid] = content
        self.answer(200, {}, ETag=f'"{oid}"')
