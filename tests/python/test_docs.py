"""Every code block of README.md and docs/, run in a clone and from an installed package; and what the pages name."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import contextpool.nn._option_table as option_table
from examples import PAGES, ROOT, Block, blocks, call, promised, run
from packages import BUILD_TREE, users_environment

PROGRAM = BUILD_TREE / "bin/contextpool"
FLAGS_OF_OTHERS = {
    *("--build", "--install", "--prefix"),  # cmake
    *("--no-deps", "--no-index"),  # pip
    *("--inspect", "--logdir"),  # tensorboard
    *("--max-restarts", "--nnodes", "--no-python", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint"),  # torchrun
    *("--shutdown-timeout", "--standalone"),
    "--gtest_filter",
}
BLOCKS = [block for page in PAGES for block in blocks(page)]


def clone(folder: Path) -> None:
    """Makes the folder a clone of the repository in which `make build` was run."""
    for path in ROOT.iterdir():
        if path.name not in ("build", ".git", ".pytest_cache"):
            (folder / path.name).symlink_to(path)
    (folder / "build").symlink_to(BUILD_TREE)


def built_here(block: Block, way: str) -> bool:
    """A project in C++ is built once, since that takes its time: README's in the clone, the others from the prefix."""
    return way == ("clone" if block.page.name == "README.md" else "installed")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("way", ["clone", "installed"])
def test_page_runs_as_printed(way: str, page: Path, text: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environment = {**users_environment(), "OMP_NUM_THREADS": "1"}
    if way == "clone":
        clone(tmp_path)
        folders, environment["PREFIX"] = [BUILD_TREE / "bin", Path(sys.executable).parent], str(BUILD_TREE)
    else:
        folders = [request.getfixturevalue("installed").parent]
        environment["PREFIX"] = str(request.getfixturevalue("prefix"))
    environment["PATH"] = ":".join([*map(str, folders), environment["PATH"]])
    shutil.copy(text, tmp_path / "text.txt")
    source = ""  # of the project that is being put together
    for block in blocks(page):
        project = "cmake -S" in block.text
        if block.language == "text" or block.not_run or (block.clone and way != "clone"):
            continue
        if project and not built_here(block, way):
            continue
        output = run(block, tmp_path, environment)
        if block.language == "cpp":
            source = block.text
        if project:
            for k, words in promised(source):
                assert output[k] == words, f"{block}: {output}"


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        outside = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"\n\n    \S", outside), f"{page.name}: an indented block; give it ``` and a language"
    for block in BLOCKS:
        assert block.language in ("cmake", "cpp", "python", "sh", "text"), block


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    reasons = [f"{block} {block.not_run}" for block in BLOCKS if block.not_run]
    assert all("needs a GPU" in reason for reason in reasons), reasons
    assert len(reasons) == 5, reasons


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_and_targets_exist(page: Path) -> None:
    words = page.read_text()
    for link in re.findall(r"\]\((?!http)([^)]+)\)", words):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads], link
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", words)) <= targets


def test_every_page_is_reachable_from_the_readme() -> None:
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        ahead += [(page.parent / path).resolve() for path in re.findall(r"\]\((?!http)([^)#]+)", page.read_text())]
    assert {*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"} <= seen


def flags_of_ours() -> set[str]:
    """Of the program and of the scripts; those of `contextpool eval` depend on the model and are read in the sources."""

    def printed(*words: str) -> list[str]:
        return subprocess.run([PROGRAM, *words, "--help"], check=True, capture_output=True, text=True).stdout.splitlines()

    subcommands = [line.split()[0] for line in printed() if re.match(r"  [a-z]", line)]
    assert "train" in subcommands and "inspect" in subcommands
    models = ("tiny", "nmt-tiny", "vit-cifar", "resnet-20", "swin-tiny")
    pages = [printed(name) for name in subcommands] + [printed("train", "--model", model) for model in models]
    pages += [printed("data", "tokenize"), printed("bench", "step"), printed("bench", "loader")]
    flags = set(re.findall(r"--[a-z][a-z0-9-]*", "\n".join(line for page in pages for line in page)))
    for header in [*(ROOT / "include/contextpool").rglob("*.h"), *(ROOT / "src/tasks").glob("*.cpp")]:
        flags |= {f"--{name.replace('_', '-')}" for name in re.findall(r'\bf\("(\w+)"', header.read_text())}
    for script in [*(ROOT / "bench").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        flags |= set(re.findall(r'"(--[a-z][a-z0-9-]*)"', script.read_text()))
    return flags


def test_every_flag_that_is_named_exists() -> None:
    known = flags_of_ours() | FLAGS_OF_OTHERS
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", page.read_text()):
            assert flag in known, f"{page.name}: {flag}"


@pytest.mark.parametrize("name", ["windows", "mixers"])
def test_picture_is_what_its_script_draws(name: str) -> None:
    drawn = call([sys.executable, str(ROOT / f"docs/{name}.py")], ROOT, users_environment(), f"docs/{name}.py")
    assert drawn == (ROOT / f"docs/{name}.svg").read_text().splitlines()


def test_every_word_of_every_option_is_explained() -> None:
    table = (ROOT / "docs/module.md").read_text().split("## Options")[1].split("\n\n**Cost")[0]
    for option, words in option_table.WORDS.items():
        assert f"`{option}`" in table
        for word in words:
            assert f"`{word}`" in table, f"{option} {word}"
