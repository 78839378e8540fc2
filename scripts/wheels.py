"""Installs wheels from the Python package index, with only Python's standard library.

    python3 scripts/wheels.py install FOLDER NAME==VERSION...
    python3 scripts/wheels.py versions NAME PREFIX

`install` unpacks the wheels for this machine in FOLDER, and replaces earlier versions there. It does not
install dependencies. A VERSION may end in `.*`. `versions` prints the versions that begin with PREFIX,
oldest first. MLX_WHEELS_PLATFORM selects wheels for another machine, with pip's name of its platform, such
as macosx_14_0_arm64.

The script takes the index, its certificates and a proxy from pip's configuration and environment.
"""

import base64
import configparser
import hashlib
import html.parser
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile

MOST_BYTES = 2 << 30  # of a wheel, packed
TRIES = 3


class Failed(Exception):
    """An error whose text says in one sentence what failed and what to do."""

    status = 1


class NotHere(Failed):
    """A package has wheels, but none for this machine."""

    status = 3


def pip_option(name):
    """Returns the value of a pip option from the environment or from pip's files, or None if it is not set."""
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if value:
        return value
    home = os.path.expanduser("~")
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    files = ["/etc/pip.conf", "/Library/Application Support/pip/pip.conf"]
    files += [os.path.join(home, ".pip", "pip.conf"), os.path.join(config, "pip", "pip.conf")]
    files += [os.path.join(home, "Library", "Application Support", "pip", "pip.conf")]
    files += [os.environ.get("PIP_CONFIG_FILE") or os.devnull]
    parser = configparser.RawConfigParser()
    try:
        parser.read(files)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise Failed("pip's configuration cannot be read; mend or remove it: %s" % str(error).splitlines()[0])
    for section in ("install", "global"):
        if parser.has_option(section, name):
            return parser.get(section, name).strip()
    return None


class Index:
    """A package index."""

    def __init__(self):
        if (pip_option("no-index") or "0").lower() not in ("0", "false", "no", "off"):
            raise Failed("pip's option no-index forbids to fetch what is missing; unset it, or install by hand")
        self.url = (pip_option("index-url") or "https://pypi.org/simple").rstrip("/") + "/"
        # urllib does not accept a user name and a password in a URL. `open` sends them to this
        # server only.
        parts = urllib.parse.urlsplit(self.url)
        self.url, self.server, self.authorization = clean(self.url), (parts.scheme, parts.hostname, parts.port), None
        if parts.username:
            words = [urllib.parse.unquote(word or "") for word in (parts.username, parts.password)]
            self.authorization = "Basic " + base64.b64encode(":".join(words).encode()).decode()
        certificates = pip_option("cert")
        try:
            context = ssl.create_default_context(cafile=certificates)
        except (OSError, ssl.SSLError) as error:
            raise Failed("the certificates in %s cannot be read: %s" % (certificates, error))
        self.opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def open(self, url, accept="*/*"):
        parts = urllib.parse.urlsplit(url)
        request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "mlx-primitives"})
        if self.authorization and (parts.scheme, parts.hostname, parts.port) == self.server:
            request.add_unredirected_header("Authorization", self.authorization)
        return self.opener.open(request, timeout=60)

    def read(self, url, accept, into=None):
        """Returns the final URL, the type and the bytes of a URL, or writes the bytes to the file `into`.

        If the network or the server fails, it tries again.
        """
        host = urllib.parse.urlsplit(url).hostname
        for attempt in range(TRIES):
            try:
                with self.open(url, accept) as answer:
                    if into is None:
                        return answer.geturl(), answer.headers.get_content_type(), answer.read(64 << 20)
                    into.seek(0)
                    into.truncate()
                    shutil.copyfileobj(answer, into, 1 << 20)
                    return None
            except urllib.error.HTTPError as error:
                if error.code < 500 or attempt + 1 == TRIES:
                    raise Failed("%s answers %s %s for %s" % (host, error.code, error.reason, clean(url)))
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise Failed(
                        "%s cannot be verified; install the system's certificates (Debian, Ubuntu: apt-get "
                        "install ca-certificates), or name a file of them in PIP_CERT" % host)
                if attempt + 1 == TRIES:
                    raise Failed("%s cannot be reached (%s); check the network and the proxy" % (host, reason))
            time.sleep(2 ** attempt)

    def files(self, name):
        """Returns the file name, the URL and the hash of each file of a package."""
        page = urllib.parse.urljoin(self.url, re.sub(r"[-_.]+", "-", name).lower() + "/")
        accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
        base, kind, content = self.read(page, accept)
        if kind.endswith("json"):
            found = json.loads(content.decode())["files"]
            return [
                (file["filename"], urllib.parse.urljoin(base, file["url"]), file["hashes"].get("sha256"))
                for file in found if not file.get("yanked")
            ]
        links = Links()
        links.feed(content.decode("utf-8", "replace"))
        result = []
        for link in links.found:
            url, _, fragment = urllib.parse.urljoin(base, link).partition("#")
            hashes = urllib.parse.parse_qs(fragment).get("sha256", [None])
            result.append((urllib.parse.unquote(url.rpartition("/")[2]), url, hashes[0]))
        return result


class Links(html.parser.HTMLParser):
    """Collects the links of a package's index page in HTML."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "a" and attributes.get("href") and "data-yanked" not in attributes:
            self.found.append(attributes["href"])


def clean(url):
    """Returns a URL without its user name and password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def number(version):
    """Returns the numbers of a release's version, or None for other versions, such as release candidates."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)*", version) else None


def command_output(*command):
    try:
        environment = dict(os.environ, SYSTEM_VERSION_COMPAT="0")
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        ).stdout.decode().strip()
    except OSError:
        return ""


class Machine:
    """The system that wheels must support: its kind, its version and its processor."""

    def __init__(self):
        asked = re.fullmatch(r"(macosx|manylinux)_(\d+)_(\d+)_(\w+)", os.environ.get("MLX_WHEELS_PLATFORM", ""))
        if asked:
            self.kind, self.processor = asked.group(1), asked.group(4)
            self.version = (int(asked.group(2)), int(asked.group(3)))
        elif sys.platform == "darwin":
            # macOS 26 reports version 16 to a Python that was built for an old system. Rosetta
            # reports an x86_64 processor.
            said = command_output("sysctl", "-n", "kern.osproductversion") or platform.mac_ver()[0]
            version = [int(part) for part in re.findall(r"\d+", said)] + [0, 0]
            self.kind, self.version = "macosx", (version[0] + 10 if version[0] == 16 else version[0], version[1])
            arm = command_output("sysctl", "-n", "hw.optional.arm64") == "1"
            self.processor = "arm64" if arm else platform.machine()
        else:
            said = command_output("getconf", "GNU_LIBC_VERSION")
            version = re.search(r"(\d+)\.(\d+)", said)
            self.kind, self.processor = "manylinux", platform.machine()
            self.version = (int(version.group(1)), int(version.group(2))) if version else None

    def __str__(self):
        if self.kind == "macosx":
            return "macOS %d.%d on %s" % (self.version + (self.processor,))
        if self.version is None:
            return "a C library other than glibc"
        return "glibc %d.%d on %s" % (self.version + (self.processor,))

    def takes(self, tag):
        """Returns the system version that a platform tag needs, or None for a tag of another kind of machine."""
        old = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
        found = re.fullmatch(r"(macosx|manylinux)_(\d+)_(\d+)_(\w+)", tag)
        kind, _, processor = tag.partition("_")
        if found:
            kind, processor = found.group(1), found.group(4)
            version = (int(found.group(2)), int(found.group(3)))
        elif kind in old:
            kind, version = "manylinux", old[kind]
        else:
            return (0, 0) if tag == "any" else None
        same = processor == self.processor or (kind == "macosx" and processor == "universal2")
        return version if kind == self.kind and same else None


def choose(index, machine, wanted):
    """Returns the file name, URL and hash of the newest wheel that fits NAME==VERSION and this machine."""
    name, _, version = wanted.partition("==")
    ours, others, versions = [], set(), set()
    for file in index.files(name):
        parts = file[0][:-4].split("-") if file[0].endswith(".whl") else []
        if len(parts) < 5 or number(parts[1]) is None:
            continue
        versions.add(number(parts[1]))
        exact = parts[1] == version or (version.endswith(".*") and parts[1].startswith(version[:-1]))
        if not exact or not parts[-3].startswith("py"):
            continue
        for tag in parts[-1].split("."):
            needs = machine.takes(tag)
            if needs is None or machine.version is None and needs > (0, 0):
                others.add(tag)
            elif needs > (machine.version or (0, 0)):
                others.add(tag)
            else:
                ours.append((number(parts[1]), needs, file))
    if ours:
        return max(ours)[2]
    if others:
        raise NotHere(
            "%s has no wheel for this machine, which has %s: there are only those for %s"
            % (wanted, machine, describe(machine, others)))
    newest = ".".join(map(str, max(versions))) if versions else "none"
    raise Failed("%s has no wheel of %s; its newest is %s" % (clean(index.url), wanted, newest))


def describe(machine, tags):
    """Returns the systems that the platform tags of other machines' wheels need, in words."""
    said = []
    for tag in sorted([tag for tag in tags if tag.startswith(machine.kind) and tag.endswith(machine.processor)] or tags):
        found = re.fullmatch(r"(macosx|manylinux)_(\d+)_(\d+)_(\w+)", tag)
        if not found:
            said.append(tag)
            continue
        system = "macOS" if found.group(1) == "macosx" else "glibc"
        release = found.group(2) if found.group(3) == "0" and system == "macOS" else ".".join(found.group(2, 3))
        said.append("%s %s or later on %s" % (system, release, found.group(4)))
    return ", ".join(said)


def install(folder, wanted):
    index, machine = Index(), Machine()
    chosen = [choose(index, machine, requirement) for requirement in wanted]
    try:
        os.makedirs(folder, exist_ok=True)
        part = tempfile.mkdtemp(prefix=".part-", dir=folder)
    except OSError as error:
        raise Failed("%s cannot be written (%s)" % (folder, error.strerror))
    try:
        for name, url, sha256 in chosen:
            unpack(index, name, url, sha256, part)
        for entry in [entry for entry in os.listdir(part) if entry.endswith(".data")]:
            spread(os.path.join(part, entry), part)
        for entry in sorted(os.listdir(part)):
            place = os.path.join(folder, entry)
            if entry == "bin" and os.path.isdir(place):  # programs of other packages stay
                for program in os.listdir(os.path.join(part, entry)):
                    os.replace(os.path.join(part, entry, program), os.path.join(place, program))
                continue
            remove(place)
            stem = entry.split("-")[0]
            if entry.endswith(".dist-info"):
                for old in os.listdir(folder):
                    if old.endswith(".dist-info") and old.split("-")[0] == stem:
                        remove(os.path.join(folder, old))
            os.rename(os.path.join(part, entry), place)
    except OSError as error:
        raise Failed("%s cannot be written (%s)" % (error.filename or folder, error.strerror or error))
    finally:
        shutil.rmtree(part, ignore_errors=True)


def spread(data, folder):
    """Moves the contents of a wheel's .data folder: programs to `bin`, and the rest to `folder`."""
    for kind, target in (("scripts", "bin"), ("purelib", "."), ("platlib", "."), ("data", ".")):
        source = os.path.join(data, kind)
        for entry in os.listdir(source) if os.path.isdir(source) else []:
            os.makedirs(os.path.join(folder, target), exist_ok=True)
            os.rename(os.path.join(source, entry), os.path.join(folder, target, entry))
    shutil.rmtree(data)


def remove(place):
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.remove(place)


def unpack(index, name, url, sha256, folder):
    with tempfile.TemporaryFile(dir=folder) as wheel:
        index.read(url, "*/*", wheel)
        wheel.seek(0)
        digest = hashlib.sha256()
        for block in iter(lambda: wheel.read(1 << 20), b""):
            digest.update(block)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise Failed("%s did not arrive whole; run this again" % name)
        try:
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    path = archive.extract(member, folder)
                    mode = member.external_attr >> 16
                    if not member.is_dir() and mode & 0o111:
                        os.chmod(path, 0o755)
        except zipfile.BadZipFile:
            raise Failed("%s is not a wheel; check the index %s" % (name, clean(index.url)))


def versions(name, prefix):
    found = set()
    for file, _, _ in Index().files(name):
        parts = file[:-4].split("-") if file.endswith(".whl") else []
        if len(parts) >= 5 and number(parts[1]) and parts[1].startswith(prefix):
            found.add(number(parts[1]))
    for version in sorted(found):
        print(".".join(map(str, version)))


def main(arguments):
    try:
        if len(arguments) >= 3 and arguments[0] == "install":
            install(arguments[1], arguments[2:])
        elif len(arguments) == 3 and arguments[0] == "versions":
            versions(*arguments[1:])
        else:
            sys.stderr.write(__doc__)
            return 2
    except Failed as failure:
        sys.stderr.write("%s\n" % failure)
        return failure.status
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
