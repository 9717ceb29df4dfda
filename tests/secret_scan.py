"""Nothing in the repository is a secret: `python -m tests.secret_scan`.

Every file is searched for the forms of well-known keys and tokens; what is deployed or published
(deploy/, the packages, CI) for passwords and for strings too random to be words, too. A line that
ends in `pragma: allowlist secret` is passed over: write beside it why it is none.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detect_secrets import SecretsCollection
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.settings import transient_settings

ROOT = Path(__file__).resolve().parent.parent

KEYS = [
    "AWSKeyDetector", "ArtifactoryDetector", "AzureStorageKeyDetector", "BasicAuthDetector",
    "CloudantDetector", "DiscordBotTokenDetector", "GitHubTokenDetector", "GitLabTokenDetector",
    "JwtTokenDetector", "MailchimpDetector", "NpmDetector", "OpenAIDetector", "PrivateKeyDetector",
    "PypiTokenDetector", "SendGridDetector", "SlackDetector", "SquareOAuthDetector",
    "StripeDetector", "TelegramBotTokenDetector", "TwilioKeyDetector",
]  # fmt: skip
RANDOM: list[dict[str, Any]] = [
    {"name": "KeywordDetector"},
    {"name": "Base64HighEntropyString", "limit": 4.5},
    {"name": "HexHighEntropyString", "limit": 3.0},
]
# Schemas and recordings of others, made long before anything here.
PUBLIC = ("tests/deploy/crds/", "tests/conformance/fixtures/", "tests/conformance/scenarios/")
STRICT = ("deploy/", "router/", "sessions_actor/", ".ci/", "pyproject.toml")
FILTERS = [
    "detect_secrets.filters.allowlist.is_line_allowlisted",
    "detect_secrets.filters.heuristic.is_indirect_reference",
    "detect_secrets.filters.heuristic.is_templated_secret",
    "detect_secrets.filters.heuristic.is_sequential_string",
]


def scan(files: list[Path], plugins: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what looks like a secret: file, line, kind; never the thing itself."""
    found = SecretsCollection()
    settings = {"plugins_used": plugins, "filters_used": [{"path": path} for path in FILTERS]}
    with transient_settings(settings):
        for file in files:
            found.scan_file(str(file))
    for name, secret in found:
        yield f"{name}:{secret.line_number}: {secret.type}"


def suspected(files: list[Path]) -> list[Path]:
    """Return the files in which the form of some key occurs at all: most are passed over so."""
    plugins = get_mapping_from_secret_type_to_class().values()
    forms = [form for one in plugins if one.__name__ in KEYS for form in one().denylist]
    assert len(forms) >= len(KEYS)
    found = []
    for file in files:
        text = file.read_text(errors="replace")
        if any(form.search(text) for form in forms):
            found.append(file)
    return found


def tracked() -> list[Path]:
    """List the repository's files, those not yet committed included."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    names = [name for name in listed.split("\0") if name and not name.startswith(PUBLIC)]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def main() -> int:
    """Say what looks like a secret; 0 when nothing does."""
    files = tracked()
    strict = [file for file in files if str(file.relative_to(ROOT)).startswith(STRICT)]
    keys = [{"name": name} for name in KEYS]
    found = sorted({*scan(suspected(files), keys), *scan(strict, RANDOM)})
    for one in found:
        print(one, file=sys.stderr)
    if not found:
        print(f"{len(files)} files searched, no secret found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
