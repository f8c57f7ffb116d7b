"""Rules of a site for crawlers: robots.txt (RFC 9309), and refusals of machine learning in headers and <meta>.

robots.txt is read once for each host, before its images. The group that names this agent counts, without one that of
"*". The longest of its rules that fits decides, "Allow" where two are equally long. A host without such a file (any
answer of 4xx) allows everything. From a host that cannot be reached, or answers 5xx, no image is taken: the failure is
that of the image, and may pass. "Content-Signal: ai-train=no" (contentsignals.org) and "Content-Usage: train-ai=n"
(IETF's AIPREF draft) of the group forbid too, whatever else is allowed there.

X-Robots-Tag is honoured as img2dataset does, beside TDM-Reservation (W3C's TDMRep) and Content-Usage.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import quote

from protego import Protego
from yarl import URL

from roibeam.messages import printable
from roibeam.pipelines.data.download.response import DownloadError

AGENT = "roibeam"
# The directives that img2dataset honours; "none" is short for noindex, nofollow. `_USES` are of Content-Usage and
# not for the training of models.
_USES = frozenset({"train-ai=n", "ai-train=no"})
_REFUSALS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"}) | _USES
# Directives with a value; any other name before a colon is that of a robot.
_WITH_VALUE = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
TDM, USAGE = "tdm-reservation", "content-usage"  # headers beside X-Robots-Tag; TDM is also the name of a <meta>
_PRODUCT = re.compile(r"\s*([A-Za-z0-9_.-]+)")
_COMPATIBLE = re.compile(r"compatible;\s*([A-Za-z0-9_.-]+)")


def agent_names(user_agent: str) -> tuple[str, ...]:
    """Names of this agent in a site's rules, lower case: roibeam's, and the one that its servers see.

    Args:
        user_agent: "mylab/1.0 (+https://...)" or "Mozilla/5.0 (compatible; mylab/1.0)".
    """
    found = _PRODUCT.match(user_agent)
    if found is not None and found[1].lower() == "mozilla":
        found = _COMPATIBLE.search(user_agent)
    return tuple(dict.fromkeys((AGENT, *(() if found is None else (found[1].lower(),)))))


def usage_directives(values: Callable[[str], Iterable[str]]) -> tuple[str, ...]:
    """Directives in the headers of an answer, as `refusal` reads them."""
    others = (f"{name}: {value}" for name in (TDM, USAGE) for value in values(name))
    return (*values("X-Robots-Tag"), *others)


def refusal(values: Iterable[str], names: Iterable[str] = (AGENT,)) -> str | None:
    """The directive that forbids this agent to take the image, or None.

    Args:
        values: of all X-Robots-Tag headers of an answer. A name before a colon is the agent that the rest of its header
            concerns ("otherbot: noai, noindex"); without a name it concerns all. Also "tdm-reservation: 1" and
            "content-usage: train-ai=n".
        names: of this agent, see `agent_names`.
    """
    matching = {*names, "*", USAGE}
    for value in values:
        applies = True
        for part in value.lower().split(","):
            name, colon, rest = (piece.strip() for piece in part.partition(":"))
            if colon and name in _WITH_VALUE:
                continue
            if colon and name == TDM:
                if rest == "1":
                    return f"{TDM}: 1"
                continue
            if colon and re.fullmatch(r"[a-z0-9_.*-]+", name):
                applies = name in matching
                name = rest
            if applies and (found := next((word for word in name.split() if word in _REFUSALS), None)):
                return f"{USAGE}: {found}" if found in _USES else found
    return None


def with_source(directive: str, where: str) -> str:
    """The directive with its source, such as "X-Robots-Tag", unless it names that itself."""
    return directive if ":" in directive else f"{where}: {directive}"


REASON = "robots.txt"
MAX_ROBOTS_BYTES = 512_000  # RFC 9309: at least 500 KiB; the rest is not read
_CACHED_BYTES = 50_000_000  # of rules, of all hosts
_LINE = re.compile(r"^[ \t]*([A-Za-z-]+)[ \t]*:[ \t]*([^#\r\n]*)", re.MULTILINE)
_STAR_OR_END = re.compile(r"[*$]")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+|\*")
_PREFERENCES = ("content-signal", "content-usage")


class RobotsRules:
    """Rules of a host for one agent.

    Args:
        rules: ("allow" or "disallow", pattern) each; in a pattern "*" stands for any characters, "$" for the end.
        reserved: (pattern, line as written) each: paths that are not for the training of models.
    """

    def __init__(self, rules: Sequence[tuple[str, str]], reserved: Sequence[tuple[str, str]]) -> None:
        forbidden = [(pattern, f"Disallow: {pattern}") for key, pattern in rules if key == "disallow"]
        self._forbidding = [
            (_parser(rules), forbidden),
            (_parser([("disallow", pattern) for pattern, _ in reserved]), reserved),
        ]
        self.num_bytes = 200 + sum(300 + 3 * len(text) for pair in (*rules, *reserved) for text in pair)  # about

    def refusal(self, path: str) -> str | None:
        """The rule that forbids this path, as written; None where it is allowed.

        Args:
            path: percent-encoded, with the query.
        """
        url = f"http://host{path}"
        for parser, lines in self._forbidding:
            if not parser.can_fetch(url, AGENT):
                # Protego does not tell which rule decides: it is the longest that forbids the path by itself.
                # Those first that begin as the path does: a file may have 20,000, and the event loop waits here.
                near = [each for each in lines if path.startswith(_STAR_OR_END.split(each[0], 1)[0])]
                for some in (near, lines):
                    alone = [each for each in some if not _parser([("disallow", each[0])]).can_fetch(url, AGENT)]
                    if alone:
                        return max(alone, key=lambda each: len(each[0]))[1]
        return None


def _parser(rules: Iterable[tuple[str, str]]) -> Protego:
    return Protego.parse("\n".join(["User-agent: *", *(f"{key}: {pattern}" for key, pattern in rules)]))


def read_robots(text: str, agents: Iterable[str] = (AGENT,)) -> RobotsRules:
    """
    Args:
        text: of the file; whatever is no rule is passed over. Lines may end in CR, LF or both.
        agents: names of this agent, lower case; groups of several of them are one.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    names: list[str] = []
    is_open = False  # whether further names join the group
    for key, value in _LINE.findall(text.replace("\r", "\n")):
        key, value = key.lower(), value.strip()
        if key == "user-agent":
            names = [*(names if is_open else ()), _token(value)]
            groups.setdefault(names[-1], [])
            is_open = True
        elif key in ("allow", "disallow", *_PREFERENCES):
            is_open = False
            for name in names if value else ():
                groups[name].append((key, value))
    matching = [name for name in dict.fromkeys(map(_token, agents)) if name in groups] or ["*"]
    lines = [line for name in matching for line in groups.get(name, ())]
    reserved = []
    for key, value in lines:
        path, _, preferences = value.partition(" ") if value.startswith("/") else ("/", "", value)
        if key in _PREFERENCES and refusal([preferences]):
            reserved.append((_pattern(path), f"{key.title()}: {value}"))
    return RobotsRules([(key, _pattern(value)) for key, value in lines if key not in _PREFERENCES], reserved)


def _pattern(value: str) -> str:
    return quote(value, safe="%/:?#[]@!$&'()*+,;=~")


def _token(name: str) -> str:
    found = _TOKEN.match(name)
    return found[0].lower() if found else ""


class RobotsTxt:
    """Rules of hosts; one request a host, however many wait for it, and a bounded memory of them.

    Args:
        read: gives the text of a robots.txt, "" where there is none.
        agents: names of this agent, lower case.
    """

    def __init__(self, read: Callable[[URL], Awaitable[str]], agents: tuple[str, ...] = (AGENT,)) -> None:
        self._read, self._agents = read, agents
        self._hosts: OrderedDict[URL, asyncio.Task[RobotsRules]] = OrderedDict()
        self._num_bytes = 0

    async def check(self, url: URL) -> None:
        """Raises DownloadError if this address is forbidden, or its host's robots.txt could not be read."""
        origin = url.origin()
        task = self._hosts.get(origin)
        if task is None:
            task = self._hosts[origin] = asyncio.ensure_future(self._fetch(origin))
        self._hosts.move_to_end(origin)
        try:
            # A cancelled waiter does not stop the others.
            rules = await asyncio.shield(task)
        except DownloadError:
            if self._hosts.get(origin) is task:
                del self._hosts[origin]  # the next request may have more luck
            raise
        if rule := rules.refusal(url.raw_path_qs or "/"):
            raise DownloadError("fetch", REASON, printable(f"{origin}/robots.txt: {rule}", 200))

    async def _fetch(self, origin: URL) -> RobotsRules:
        rules = read_robots(await self._read(origin.with_path("/robots.txt")), self._agents)
        self._num_bytes += rules.num_bytes
        if self._num_bytes > _CACHED_BYTES:
            self._forget()
        return rules

    def _forget(self) -> None:
        """Drops half of the rules: those of the hosts that were not needed for longest."""
        for origin, task in list(self._hosts.items()):
            if self._num_bytes <= _CACHED_BYTES // 2:
                return
            if task.done() and not task.cancelled() and task.exception() is None:
                self._num_bytes -= task.result().num_bytes
                del self._hosts[origin]
