#!/usr/bin/env python3
"""Checks the links of the built book and of the repository's Markdown.

    check_links.py BOOK

BOOK is the folder with the HTML that mdBook wrote. A relative link in it must lead to a file of the
book, and its anchor to an element of that page. A link in a tracked Markdown file must lead to a
tracked file, and its anchor to a heading. Links to this repository on GitHub are treated like
relative links. Every page of docs/ must be in SUMMARY.md, and every picture must be well-formed
XML. This script does not use the network.
"""

import html.parser
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree

from check_packages import links

REPOSITORY = re.compile(r"https://github\.com/mlx-primitives/mlx-primitives(?:/(?:blob|tree)/main/?)?(?=$|[/#\w.])")
# Pages that mdBook adds: all chapters on one page, the page for missing pages, and the list of
# chapters for a frame.
WITHOUT_CHAPTER = {"print.html", "404.html", "toc.html"}


class Page(html.parser.HTMLParser):
    """Collects the ids of a page, and the targets of its links and pictures."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and tag in ("a", "img"):
                self.targets.append(value)


def split(link):
    """Returns the decoded path and anchor of a relative link, or `None` for an absolute link."""
    if re.match(r"[a-z]+:", link):
        return None
    path, _, anchor = link.partition("#")
    return urllib.parse.unquote(path), urllib.parse.unquote(anchor)


def in_repository(link):
    """Returns the path in this repository that an absolute link leads to, or `None`."""
    found = REPOSITORY.match(link)
    return link[found.end() :].lstrip("/") if found else None


def headings(text):
    """Returns the anchors that GitHub gives to the headings of a Markdown text."""
    anchors = set()
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for title in re.findall(r"^#+ +(.*?) *#*$", text, flags=re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        count = 0
        while anchor in anchors:
            count += 1
            anchor = f"{slug}-{count}"
        anchors.add(anchor)
    return anchors


def of_markdown(file, link, tracked):
    """Returns a message if a link of a tracked Markdown file is broken, or `None`."""
    inside = in_repository(link)
    folder = "" if inside is not None else os.path.dirname(file)
    parts = split(link if inside is None else inside)
    if parts is None:
        return None
    path, anchor = parts
    path = os.path.normpath(os.path.join(folder, path)) if path else ("." if inside == "" else file)
    if path != "." and not any(other == path or other.startswith(path + "/") for other in tracked):
        return f"{file}: {link} leads to no tracked file"
    if anchor and path.endswith(".md") and anchor not in headings(pathlib.Path(path).read_text()):
        return f"{file}: {link} leads to no heading"
    return None


def of_book(book, tracked):
    pages = {path: Page(path.read_text()) for path in sorted(book.rglob("*.html"))}
    count = 0
    for path, page in pages.items():
        if path.name in WITHOUT_CHAPTER:
            continue
        for link in page.targets:
            count += 1
            name = path.relative_to(book)
            inside = in_repository(link)
            if inside:
                if complaint := of_markdown(str(name), link, tracked):
                    yield complaint
                continue
            parts = split(link)
            if parts is None:
                continue
            target = path if not parts[0] else pathlib.Path(os.path.normpath(path.parent / parts[0]))
            if not target.is_file():
                yield f"{name}: {link} leads to no file of the book"
            elif parts[1] and target in pages and parts[1] not in pages[target].ids:
                yield f"{name}: {link} leads to no element of that page"
    print(f"book: {len(pages) - len(WITHOUT_CHAPTER)} pages, {count} links")


def complaints(book):
    tracked = subprocess.check_output(["git", "ls-files"], text=True).splitlines()
    yield from of_book(book, tracked)
    for file in tracked:
        if file.endswith(".md"):
            for link in links(pathlib.Path(file).read_text()):
                if complaint := of_markdown(file, link, tracked):
                    yield complaint
        elif file.endswith(".svg"):
            try:
                xml.etree.ElementTree.parse(file)
            except xml.etree.ElementTree.ParseError as error:
                yield f"{file}: {error}"
    listed = {link.partition("#")[0] for link in links(pathlib.Path("docs/SUMMARY.md").read_text())}
    pages = {file.removeprefix("docs/") for file in tracked if re.fullmatch(r"docs/.*\.md", file)}
    for page in sorted(pages - listed - {"SUMMARY.md"}):
        yield f"docs/SUMMARY.md: lacks {page}"


def main():
    found = list(complaints(pathlib.Path(sys.argv[1])))
    for complaint in found:
        print(f"book: {complaint}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
