"""What a person sees whose app, or whose oncebox.toml, can't be run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncebox.policy import WORDS
from oncebox.runtime.running import PARTS
from tests.cli.kit import Done, oncebox

CANARY = "canary-Secret-42"
APP = """\
from oncebox import App

app = App("sqlite:///shop.db")
billing = app.consumer("billing", batch=5)
number = 3
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Done]:
    """`oncebox run` in a folder with a good shop.py."""
    (tmp_path / "shop.py").write_text(APP)

    def run(reference: str, **files: str) -> Done:
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        return oncebox("run", reference, cwd=tmp_path)

    return run


def refused(done: Done, message: str) -> None:
    """The one line, nothing else, exit code 2."""
    assert done.err == f"oncebox: {message}\n"
    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "nowhere:app",
            "no module 'nowhere' here or on the Python path; run this where nowhere.py is, or set PYTHONPATH",
        ),
        (
            "shop.py:app",
            "'shop.py' is a file; a module goes without .py, with dots for folders: shop:app",
        ),
        ("shop", "'shop' names no app: write module:name, as in shop:app for `app` in shop.py"),
        ("shop:", "'shop:' names no app: write module:name, as in shop:app for `app` in shop.py"),
        ("shop:apple", "shop:apple: 'shop' has no 'apple'; did you mean shop:app?"),
        ("shop:number", "shop:number is of type int, not an oncebox App; did you mean shop:app?"),
        ("shop:app.nothing", "shop:app.nothing: 'shop' has no 'app.nothing'; did you mean shop:app?"),
    ],
)
def test_a_reference_to_no_app(run: Callable[..., Done], reference: str, message: str) -> None:
    refused(run(reference), message)


def test_no_reference_at_all(tmp_path: Path) -> None:
    refused(oncebox("run", cwd=tmp_path), "no app named; write: oncebox run module:app (or set ONCEBOX_APP)")


def test_parts_that_do_not_exist(tmp_path: Path) -> None:
    refused(
        oncebox("run", "shop:app", "--only", "sources,kitchen", cwd=tmp_path),
        f"--only kitchen: the parts are {', '.join(PARTS)}",
    )


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            f"raise ValueError('no postgresql://u:{CANARY}@host/shop here')",
            "ValueError: no postgresql://u:***@host/shop here (broken.py:1); --debug shows the traceback",
        ),
        (
            "x = 1\nimport a_package_that_nobody_has",
            "No module named 'a_package_that_nobody_has' (broken.py:2); install it, or fix the import",
        ),
        (
            "def (:",
            "SyntaxError: invalid syntax (broken.py, line 1) (broken.py:1); --debug shows the traceback",
        ),
        ("raise SystemExit", "SystemExit (broken.py:1); --debug shows the traceback"),
    ],
)
def test_a_module_that_raises_on_import(run: Callable[..., Done], code: str, what: str) -> None:
    refused(run("broken:app", broken_py=code + "\n"), f"importing broken failed: {what}")


def test_debug_shows_where_an_import_failed(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(f"raise ValueError('postgresql://u:{CANARY}@host/shop')\n")
    done = oncebox("run", "broken:app", "--debug", cwd=tmp_path)
    assert f'File "{tmp_path / "broken.py"}", line 1, in <module>' in done.err
    assert CANARY not in done.err


def test_a_real_source_without_a_database(run: Callable[..., Done]) -> None:
    code = (
        "from oncebox import App\n"
        "from oncebox.brokers.remote import RemoteMemory\n"
        "app = App()\n"
        "source = RemoteMemory('memory://127.0.0.1:1/c2VjcmV0').queue('payments')\n"
        "app.consumer('billing', source)\n"
    )
    done = run("real:app", real_py=code)
    refused(
        done,
        "consumer 'billing' has a real source, but the app names no database: App('postgresql://…') or "
        "ONCEBOX_DATABASE_URL (a silent SQLite file in each container would be a ledger in each container)",
    )


def test_a_policy_word_in_code_and_in_toml(run: Callable[..., Done]) -> None:
    refused(
        run("shop:app", oncebox_toml="[consumers.billing]\nbatch = 7\n"),
        "consumer 'billing': batch is set in code (5) and in oncebox.toml:2 (7); keep one of them; "
        "raised while importing shop (shop.py:4)",
    )


def test_a_consumer_in_toml_that_the_app_lacks(run: Callable[..., Done]) -> None:
    refused(
        run("shop:app", oncebox_toml='schema = "oncebox"\n\n[consumers.shipping]\nbatch = 7\n'),
        "oncebox.toml:3 sets policy for consumer 'shipping', which this app does not have; it has: billing",
    )


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("schema = \n", "oncebox.toml:1: not TOML, at key 'schema': Invalid value (column 10)"),
        (
            "[consumers.billing]\nmode = 'stored'\nmode = 'inline'\n",
            "oncebox.toml:3: not TOML, at key 'mode': Cannot overwrite a value (column 16)",
        ),
        ("[consumers.billing\n", "oncebox.toml:1: not TOML: Expected ']' at the end of a table declaration"),
        ("schema = 3\n", "oncebox.toml:1: schema is a text"),
        ("\nshema = 'x'\n", "oncebox.toml:2: unknown key 'shema'; known: consumers, schema"),
        (
            "schema = 'two words'\n",
            "schema='two words': use lower-case letters, digits and underscores, starting with a letter",
        ),
        (
            "[consumers.billing]\nmode = 'fast'\n",
            "oncebox.toml:2: mode='fast': it is one of 'inline', 'stored'",
        ),
        (
            "[consumers.billing]\nconcurrency = 'many'\n",
            "oncebox.toml:2: concurrency='many': it is a whole number",
        ),
        (
            "[consumers.billing]\nmode = 'stored'\nbatchsize = 3\n",
            f"oncebox.toml:3: unknown policy word 'batchsize'; known: {', '.join(sorted(WORDS))}",
        ),
        (
            "[consumers.billing]\nretry = 3\n",
            "oncebox.toml:2: retry is a table, as in retry = { attempts = 5 }",
        ),
    ],
)
def test_bad_toml(run: Callable[..., Done], toml: str, message: str) -> None:
    done = run("shop:app", oncebox_toml=toml)
    assert done.err.startswith(f"oncebox: {message}"), done.err
    assert done.err.endswith("; raised while importing shop (shop.py:3)\n")
    assert done.code == 2
