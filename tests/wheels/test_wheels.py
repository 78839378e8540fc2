"""Tests scripts/wheels.py with a package index on this machine that requires a name and a password."""

import base64
import hashlib
import http.server
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "wheels.py"
HIDDEN = "Basic " + base64.b64encode(b"me:p@ss").decode()


def wheel(version):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, mode in [
            ("pk/tool", 0o755),
            ("pk/data.txt", 0o644),
            ("pk-%s.data/scripts/run" % version, 0o755),
            ("pk-%s.dist-info/METADATA" % version, 0o644),
        ]:
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, version)
    return content.getvalue()


# The name of each file, its content, and the wrong hash that the index claims for it, if any.
FILES = {
    "pk-1.2.2-py3-none-any.whl": (wheel("1.2.2"), "0" * 64),
    "pk-1.2.3-py3-none-any.whl": (wheel("1.2.3"), None),
    "pk-1.2.10-py3-none-any.whl": (wheel("1.2.10"), None),
    "pk-1.3.0rc1-py3-none-any.whl": (wheel("1.3.0rc1"), None),
    "pk-1.4.0.tar.gz": (b"source", None),
    "pk-2.0.0-py3-none-manylinux_2_35_x86_64.whl": (wheel("2.0.0"), None),
    "pk-2.0.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": (wheel("2.0.0"), None),
    "pk-2.1.0-py3-none-manylinux_2_35_x86_64.whl": (wheel("2.1.0"), None),
    "pk-2.1.0-py3-none-macosx_14_0_arm64.whl": (wheel("2.1.0"), None),
    "pk-2.1.0-py3-none-macosx_26_0_arm64.whl": (wheel("2.1.0"), None),
    "pk-2.2.0-py3-none-any.whl": (b"no archive", None),
}
YANKED = "pk-1.2.99-py3-none-any.whl"


class Index(http.server.BaseHTTPRequestHandler):
    as_json = False
    asked = []

    def log_message(self, *_):
        pass

    def answer(self, status, kind="", content=b""):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        Index.asked.append(name)
        if self.headers.get("Authorization") != HIDDEN:
            self.answer(401)
        elif self.path == "/simple/pk/" and Index.as_json:
            files = [dict(filename=name, url="../../f/" + name, hashes={"sha256": digest(name)}) for name in FILES]
            files.append(dict(filename=YANKED, url="../../f/" + YANKED, hashes={}, yanked=True))
            kind = "application/vnd.pypi.simple.v1+json"
            self.answer(200, kind, json.dumps({"files": files}).encode())
        elif self.path == "/simple/pk/":
            links = ['<a href="../../f/%s#sha256=%s">' % (name, digest(name)) for name in FILES]
            links.append('<a data-yanked="" href="../../f/%s">' % YANKED)
            self.answer(200, "text/html", "</a>".join(links).encode())
        elif name in FILES:
            self.answer(200, "application/zip", FILES[name][0])
        else:
            self.answer(404)


def digest(name):
    content, given = FILES[name]
    return given or hashlib.sha256(content).hexdigest()


class Wheels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "into"
        Index.as_json, Index.asked = False, []

    def run_script(self, *arguments, user="me:p%40ss@", **variables):
        url = "http://%s127.0.0.1:%d/simple" % (user, self.server.server_port)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        environment.update(PIP_INDEX_URL=url, PIP_CONFIG_FILE=os.devnull, **variables)
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, universal_newlines=True, timeout=60)

    def install(self, *wanted, **options):
        return self.run_script("install", str(self.folder), *wanted, **options)

    def refused(self, said, *wanted, status=1, **options):
        result = self.install(*wanted, **options)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (status, 1), result.stderr)
        self.assertIn(said, result.stderr)
        self.assertNotIn("p%40ss", result.stderr)
        self.assertNotIn("p@ss", result.stderr)

    def test_a_wheel_replaces_its_earlier_version(self):
        for as_json, version in [(False, "1.2.3"), (True, "1.2.10")]:
            Index.as_json = as_json
            result = self.install("pk==" + version)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            entries = sorted(path.name for path in self.folder.iterdir())
            self.assertEqual(entries, ["bin", "pk", "pk-%s.dist-info" % version])
            for name in ["pk/tool", "bin/run"]:
                self.assertEqual((self.folder / name).read_text(), version)
                self.assertTrue((self.folder / name).stat().st_mode & stat.S_IXUSR)
            self.assertFalse((self.folder / "pk/data.txt").stat().st_mode & stat.S_IXUSR)

    def test_the_newest_release_of_a_line_is_taken(self):
        self.assertEqual(self.install("pk==1.2.*").returncode, 0)
        self.assertEqual((self.folder / "pk/tool").read_text(), "1.2.10")  # not 1.2.3, nor what was withdrawn
        result = self.run_script("versions", "pk", "1.")
        self.assertEqual(result.stdout.split(), ["1.2.2", "1.2.3", "1.2.10"])

    def test_the_wheel_fits_the_machine(self):
        for platform, wanted, taken in [
            ("manylinux_2_31_x86_64", "pk==2.0.0", "manylinux_2_17"),
            ("manylinux_2_36_x86_64", "pk==2.0.0", "manylinux_2_35"),
            ("macosx_15_3_arm64", "pk==2.1.0", "macosx_14_0"),
            ("macosx_26_1_arm64", "pk==2.1.0", "macosx_26_0"),
        ]:
            result = self.install(wanted, MLX_WHEELS_PLATFORM=platform)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(taken, Index.asked[-1])
        for platform, said in [
            ("manylinux_2_31_x86_64", "has glibc 2.31 on x86_64: there are only those for glibc 2.35 or later on x86_64"),
            ("macosx_13_6_arm64", "has macOS 13.6 on arm64: there are only those for macOS 14 or later on arm64, macOS 26"),
            ("macosx_26_0_x86_64", "has macOS 26.0 on x86_64: there are only those for macOS 14 or later on arm64"),
            ("manylinux_2_39_riscv64", "has glibc 2.39 on riscv64: there are only those for"),
        ]:
            self.refused(said, "pk==2.1.0", status=3, MLX_WHEELS_PLATFORM=platform)

    def test_failures_name_their_cause_and_leave_nothing(self):
        self.refused("pk-1.2.2-py3-none-any.whl did not arrive whole; run this again", "pk==1.2.2")
        self.refused("has no wheel of pk==1.2.99; its newest is 2.2.0", "pk==1.2.99")
        self.refused("pk-2.2.0-py3-none-any.whl is not a wheel; check the index", "pk==2.2.0")
        self.refused("answers 404 Not Found", "nothing==1")
        self.refused("answers 401 Unauthorized", "pk==1.2.3", user="")
        self.refused("forbids", "pk==1.2.3", PIP_NO_INDEX="1")
        self.refused("cannot be read", "pk==1.2.3", PIP_CERT="/nonexistent")
        self.assertEqual(list(self.folder.iterdir()) if self.folder.exists() else [], [])
        self.folder.mkdir(exist_ok=True)
        if os.getuid() != 0:
            self.folder.chmod(0o555)
            self.refused("cannot be written", "pk==1.2.3")


if __name__ == "__main__":
    unittest.main()
