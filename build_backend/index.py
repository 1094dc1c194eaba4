"""The package indexes that a frontend was told to use.

pip gives a backend its environment, but not the options of its own command line; and
what uv was told means nothing to the pip that fetches Ray's wheel. So the command line
of the nearest frontend above this process is read, and uv's environment and
configuration too. What pip reads on its own (its environment and its configuration
files) is left to it.
"""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Iterable, List, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import quote, urlsplit

from build_backend.processes import Process, ancestors

FRONTENDS = {
    "pip": r"pip[\d.]*(\.exe)?",
    "uv": r"uv(\.exe)?",
    "build": r"(pyproject-)?build(\.exe)?",
}
# Options of pip that say how packages get here, beside where they come from.
PIP_VALUES = (
    "--trusted-host --cert --client-cert --proxy --retries --timeout "
    "--keyring-provider --cache-dir"
).split()
PIP_FLAGS = "--no-index --no-cache-dir --isolated".split()


class Source(NamedTuple):
    """Where pip is to look for a package.

    Args:
        options: Options for it.
        index: The only index; None for those of its own environment, its own
            configuration and the options.
    """

    options: List[str]
    index: Optional[str] = None


def sources(
    environment: Mapping[str, str] = os.environ,
    processes: Optional[Iterable[Process]] = None,
) -> List[Source]:
    """List where to look for a package: it comes from the first that has it.

    Args:
        environment: The environment variables.
        processes: Those above this one, the nearest first.

    Returns:
        At least one source.
    """
    for process in ancestors() if processes is None else processes:
        name, arguments = frontend(process.arguments)
        if name == "pip":
            return [Source(_pip_options(arguments, process.folder))]
        if name == "uv":
            return _uv_sources(arguments, process.folder, environment)
        if name:
            break
    # Others, such as `build`, install what a build needs with pip or with uv.
    return _uv_sources([], Path.cwd(), environment)


def frontend(command: List[str]) -> Tuple[Optional[str], List[str]]:
    """Return which frontend a command line is of, if any, and its arguments."""
    rest = list(command)
    name = Path(rest.pop(0)).name if rest else ""
    if re.match(r"(python|pypy)", name, re.IGNORECASE):
        name = ""
        while rest and not name:
            part = rest.pop(0)
            if re.fullmatch(r"-[A-Za-z]*m", part):
                name = rest.pop(0) if rest else ""
            elif part in ("-W", "-X"):
                rest[:1] = []
            elif part == "-c":
                return None, []
            elif part[:1] != "-":
                path = Path(part)
                inner = path.name in ("__main__.py", "__pip-runner__.py")
                name = path.parent.name if inner else path.name
    for kind, pattern in FRONTENDS.items():
        if re.fullmatch(pattern, name):
            return kind, rest
    return None, []


def _pip_options(arguments: List[str], folder: Path, depth: int = 0) -> List[str]:
    """Return those of pip's arguments that say where packages come from."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-i", "--index-url", "--pypi-url", action="append")
    parser.add_argument("-f", "--find-links", action="append")
    parser.add_argument("-r", "--requirement", action="append")
    for option in ("--extra-index-url", *PIP_VALUES):
        parser.add_argument(option, action="append")
    for option in PIP_FLAGS:
        parser.add_argument(option, action="store_true")
    found = vars(parser.parse_known_args(arguments)[0])
    options = []
    for option in ("--index-url", "--extra-index-url", "--find-links"):
        for value in found[_key(option)] or ():
            options += [option, _absolute(value, folder)]
    for option in PIP_VALUES:
        for value in found[_key(option)] or ():
            options += [option, value]
    options += [option for option in PIP_FLAGS if found[_key(option)]]
    for file in found["requirement"] or () if depth < 8 else ():
        options += _requirements_options(folder / file, depth + 1)
    return options


def _requirements_options(file: Path, depth: int) -> List[str]:
    """Return the options that stand in a requirements file."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace")
        lines = re.sub(r"\\\n", " ", lines).splitlines()
        words = [
            w for line in lines if line[:1] == "-" for w in shlex.split(line, True)
        ]
    except (OSError, ValueError):
        return []  # Such as one on the web.
    return _pip_options(words, file.parent, depth)


def _uv_sources(
    arguments: List[str], folder: Path, environment: Mapping[str, str]
) -> List[Source]:
    """Return where uv looks: in one index after the other, the default one last."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--index", "--extra-index-url", "--allow-insecure-host"):
        parser.add_argument(option, action="append")
    parser.add_argument("-i", "--index-url")
    parser.add_argument("-f", "--find-links", action="append")
    parser.add_argument("--trusted-host", action="append", dest="allow_insecure_host")
    for option in ("--default-index", "--config-file"):
        parser.add_argument(option)
    for option in ("--no-index", "--offline", "--no-config"):
        parser.add_argument(option, action="store_true")
    given = parser.parse_known_args(arguments)[0]

    def env(name):
        return environment.get(f"UV_{name}", "")

    config = {}
    if not (given.no_config or env("NO_CONFIG")):
        config = _uv_config(given.config_file or env("CONFIG_FILE"), environment)
    options = []
    for value in given.find_links or filter(None, env("FIND_LINKS").split(",")):
        options += ["--find-links", _absolute(value, folder)]
    for value in given.allow_insecure_host or env("INSECURE_HOST").split():
        options += ["--trusted-host", value]
    if given.no_index or given.offline or env("NO_INDEX") or env("OFFLINE"):
        return [Source([*options, "--no-index"])]
    default = given.default_index or given.index_url
    default = default or env("DEFAULT_INDEX") or env("INDEX_URL")
    urls = [
        *(given.index or env("INDEX").split()),
        *(given.extra_index_url or env("EXTRA_INDEX_URL").split()),
        *config.get("extra", ()),
        *filter(None, [default or config.get("default")]),
    ]
    # What uv takes over plain HTTP, pip takes from trusted hosts only.
    for url in urls:
        parts = urlsplit(url[url.find("http:") :])
        if parts.scheme == "http":
            options += ["--trusted-host", parts.netloc.rpartition("@")[2]]
    found = [
        Source(options, _absolute(_with_credentials(url, environment), folder))
        for url in urls
    ]
    if not (default or config.get("default")):
        found.append(Source(options))
    return found


def _uv_config(file: str, environment: Mapping[str, str]) -> dict:
    """Read the indexes in uv's own configuration file: the user's, or the system's."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        return {}
    home = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    for path in [file] if file else [Path(home, "uv/uv.toml"), "/etc/uv/uv.toml"]:
        try:
            config = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        indexes = [i for i in config.get("index", ()) if isinstance(i, dict)]
        default = [i["url"] for i in indexes if i.get("default") and "url" in i]
        named = [
            f"{i.get('name', '')}={i['url']}" if i.get("name") else i["url"]
            for i in indexes
            if "url" in i and not i.get("default")
        ]
        return {
            "default": (default or [config.get("index-url")])[0],
            "extra": [*named, *config.get("extra-index-url", ())],
        }
    return {}


def _with_credentials(index: str, environment: Mapping[str, str]) -> str:
    """Return the address of one of uv's indexes, `name=URL` or `URL`."""
    named = re.match(r"([\w.-]+)=", index)
    if not named:
        return index
    url = index[named.end() :]
    name = re.sub(r"\W|\.", "_", named[1]).upper()
    user = environment.get(f"UV_INDEX_{name}_USERNAME", "")
    password = environment.get(f"UV_INDEX_{name}_PASSWORD", "")
    parts = urlsplit(url)
    if not (user or password) or parts.username:
        return url
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@"
    return parts._replace(netloc=login + parts.netloc).geturl()


def _absolute(place: str, folder: Path) -> str:
    """Return an address, or the path of a folder that a frontend was given."""
    path = folder / place
    return str(path) if "://" not in place and path.exists() else place


def _key(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
