"""The code blocks of README.md and docs/, as a reader would run them.

A page is a story: its blocks run in order, in one folder. Each is run as it is printed, unless comments of this form,
each on a line of its own before the block, say otherwise:

    <!-- test: file NAME -->        the block is the content of that file
    <!-- test: in FOLDER -->        run there
    <!-- test: clone -->            works in a clone only, not from an installed package
    <!-- test: sed EXPRESSION -->   run after this edit: fewer steps, or a path that the reader fills in. $PREFIX is
                                    where ContextPool's CMake package is, text.txt a small text
    <!-- test: not run: REASON -->
"""

import dataclasses
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"((?:^<!-- test: [^\n]* -->\n)*)^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclasses.dataclass
class Block:
    page: Path
    line: int
    language: str
    text: str
    edits: list[str]
    file: str = ""
    folder: str = "."
    clone: bool = False
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCED.finditer(text):
        line = text.count("\n", 0, match.start(3))
        block = Block(page, line, match[2], match[3], [])
        for word, rest in re.findall(r"^<!-- test: (file|in|clone|sed|not run:) ?(.*) -->$", match[1], re.MULTILINE):
            if word == "sed":
                block.edits.append(rest)
            else:
                name = {"in": "folder", "not run:": "not_run"}.get(word, word)
                setattr(block, name, rest or True)
        assert match[1].count("<!-- test:") == len(re.findall(r"<!-- test: (?:file|in|clone|sed|not run:)", match[1]))
        found.append(block)
    return found


def promised(code: str) -> list[tuple[int, str]]:
    """What an example says that its prints print: (which line of its output from the end of it, the text)."""
    lines = [line for line in code.splitlines() if line.lstrip().startswith(("print(", "std::cout"))]
    said = [re.split(r" (?://|#) ", line, maxsplit=1)[1:] for line in lines]
    return [(k - len(lines), words[0].strip()) for k, words in enumerate(said) if words]


def call(command: list[str], cwd: Path, environment: dict[str, str], what: object) -> list[str]:
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, f"{what}\n{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def run(block: Block, cwd: Path, environment: dict[str, str]) -> list[str]:
    """Runs a block of the shell or Python, or saves a file. Returns what it printed."""
    folder = cwd / block.folder
    folder.mkdir(parents=True, exist_ok=True)
    text = block.text
    for edit in block.edits:
        text = subprocess.run(["sed", "-E", edit], input=text, check=True, capture_output=True, text=True).stdout
    if block.file:
        path = folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        assert not path.is_symlink(), f"{block}: {path} is a file of the clone"
        path.write_text(text)
        return []
    if block.language == "python":
        output = call(["python", "-c", text], folder, environment, block)
        for k, words in promised(block.text):
            assert output[k] == words, f"{block}: {output}"
        return output
    assert block.language == "sh", f"{block}: a block of {block.language} must be a file"
    return call(["bash", "-euo", "pipefail", "-c", text], folder, environment, block)
