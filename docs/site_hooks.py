"""What mkdocs cannot do by itself: files outside of docs/ that pages link to, and notebooks as pages.

The pages are written to be read as plain Markdown in the repository, where ``../scenarios/x.toml`` and
``notebooks/x.ipynb`` are links like any other. The site takes copies of the former along and makes pages of the latter
from their stored outputs; nothing is executed here (``docs/notebooks.py`` does that).
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook, and every file outside of docs/ that a page links to."""
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        for name, content in as_page(notebook):
            files.append(File.generated(config, name, content=content))
    for page in [file for file in files if file.src_uri.endswith(".md")]:
        for target in outside(page.src_uri, page.content_string):
            source = ROOT / target
            if source.is_file() and f"files/{target}" not in files.src_uris:
                files.append(File.generated(config, f"files/{target}.txt", abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ lead to the copies, links to notebooks to their pages."""
    here = page.file.src_uri

    def led(link: re.Match[str]) -> str:
        target = resolved(here, link[2])
        if target.startswith("../") and (ROOT / target[3:]).is_file():
            target = f"files/{target[3:]}.txt"
        elif target.startswith("notebooks/") and target.endswith(".ipynb"):
            target = target.removesuffix(".ipynb") + ".md"
        else:
            return link[0]
        return link[1] + posixpath.relpath(target, posixpath.dirname(here) or ".") + link[3]

    return LINK.sub(led, markdown)


def outside(page: str, markdown: str) -> list[str]:
    """Files of the repository, outside of docs/, that a page links to."""
    found = (resolved(page, link[2]) for link in LINK.finditer(markdown))
    return sorted({target[3:] for target in found if target.startswith("../")})


def resolved(page: str, link: str) -> str:
    """A link as a path from docs/ on; ``../`` in front: outside of it."""
    if "://" in link:
        return link
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def as_page(notebook: Path) -> list[tuple[str, str | bytes]]:
    """A notebook as Markdown, and its pictures as files beside it."""
    stem = notebook.stem
    lines, pictures = [], []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            lines.append(source)
            continue
        lines.append(cell_of("in", f"```python\n{source}\n```"))
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}_{len(pictures)}.png"
                pictures.append((f"notebooks/{name}", base64.b64decode("".join(data["image/png"]))))
                lines.append(cell_of("out", f"![Output of the code above]({name})"))
            else:
                text = "".join(output.get("text") or data.get("text/plain") or "")
                lines.append(cell_of("out", f"```text\n{text.rstrip()}\n```"))
    where = f"*This page is the notebook `docs/notebooks/{notebook.name}` with its stored outputs.*"
    return [(f"notebooks/{stem}.md", "\n\n".join([lines[0], where, *lines[1:]]) + "\n"), *pictures]


def cell_of(kind: str, content: str) -> str:
    """Code ("in") or what it printed ("out"), told apart by ``site.css``."""
    return f'<div class="notebook-{kind}" markdown>\n\n{content}\n\n</div>'
