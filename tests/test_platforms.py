"""The package runs on machines that this one is not: what only some of them have is asked for with a way round."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
POSIX = {
    "os": {"sysconf", "fork", "getuid", "geteuid", "uname", "sched_getaffinity", "nice", "killpg", "statvfs"},
    "signal": {"SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "alarm", "setitimer", "pthread_sigmask"},
}
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "posix"}


def unguarded(source: str) -> list[str]:
    """Names that only POSIX has, used outside a ``try`` whose handlers catch that, and without a question before."""
    found = []

    def visit(node: ast.AST, guarded: bool) -> None:
        if isinstance(node, (ast.If, ast.IfExp)):
            asked = ast.unparse(node.test)
            guarded |= any(word in asked for word in ("hasattr", "sys.platform", "os.name", "is not None", "is None"))
        if isinstance(node, ast.Try):
            caught = " ".join(ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers)
            inside = guarded or any(word in caught for word in ("AttributeError", "ImportError", "Exception"))
            for child in node.body:
                visit(child, inside)
            rest = [*node.handlers, *node.orelse, *node.finalbody]
            for child in rest:
                visit(child, guarded)
            return
        owner = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        if isinstance(node, ast.Attribute) and node.attr in POSIX.get(owner, ()) and not guarded:
            found.append(f"{owner}.{node.attr} in line {node.lineno}")
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not guarded:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found.extend(f"import {name} in line {node.lineno}" for name in names if name in MODULES)
        for child in ast.iter_child_nodes(node):
            visit(child, guarded)

    visit(ast.parse(source), False)
    return found


def test_the_check_sees_what_stopped_windows():
    assert unguarded("import os\ntotal = os.sysconf('SC_PHYS_PAGES')") == ["os.sysconf in line 2"]
    assert unguarded("import fcntl") == ["import fcntl in line 1"]
    assert unguarded("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None") == []
    assert unguarded("try:\n    n = os.sysconf('x')\nexcept OSError:\n    n = 0") == ["os.sysconf in line 2"]
    assert unguarded("n = os.sysconf('x') if hasattr(os, 'sysconf') else None") == []


def test_calls_that_only_posix_has_have_a_way_round():
    files = [path for folder in ("eqr_torchrl", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): unguarded(path.read_text(encoding="utf-8")) for path in files}
    assert not {path: names for path, names in found.items() if names}


def test_text_is_read_and_written_as_utf_8_on_every_machine():
    # Windows' own encoding is another one
    calls = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", {keyword.arg for keyword in node.keywords})
        for folder in ("eqr_torchrl", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("read_text", "write_text")
    ]
    assert not [place for place, keywords in calls if "encoding" not in keywords]
