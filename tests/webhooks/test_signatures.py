"""Each scheme's check, by hand: what it takes, what it refuses, and what it vouches for."""

import base64
import hashlib
import hmac
from typing import Any

import pytest

from oncebox.errors import ConfigError
from oncebox.webhooks import Unverified, Verifier, github, standard, stripe, token
from tests.webhooks.kit import (
    BODY,
    OLD_SECRET,
    PLAIN,
    SECRET,
    Headers,
    signed_github,
    signed_standard,
    signed_stripe,
)

NOW = 1_700_000_000.0


def check(verify: Verifier, headers: Headers, body: bytes = BODY, now: float = NOW) -> Any:
    return verify.check({name: headers[name].encode() for name in verify.needs}, body, now)


SCHEMES = [
    pytest.param(standard(SECRET), lambda at, body: signed_standard(body, at=at), id="standard"),
    pytest.param(stripe(PLAIN), lambda at, body: signed_stripe(body, at=at), id="stripe"),
]


def test_the_published_example_of_standard_webhooks_is_taken() -> None:
    # The test vector of the Standard Webhooks libraries.
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert check(standard(secret), headers, body, 1614265330.0).id == "msg_p5jXN8AQM9LWM0D4loKWxJek"


def test_githubs_published_example_is_taken() -> None:
    signature = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": f"sha256={signature}"}
    check(github("It's a Secret to Everybody"), headers, b"Hello, World!")


@pytest.mark.parametrize(("verify", "sign"), SCHEMES)
@pytest.mark.parametrize(("off", "taken"), [(-300, True), (300, True), (-301, False), (301, False)])
def test_five_minutes_in_both_directions(verify: Verifier, sign: Any, off: int, taken: bool) -> None:
    headers = sign(NOW + off, BODY)
    if taken:
        check(verify, headers)
    else:
        with pytest.raises(Unverified, match="a replay, or a clock"):
            check(verify, headers)


@pytest.mark.parametrize(("verify", "sign"), SCHEMES)
def test_any_flipped_bit_of_the_body_is_refused(verify: Verifier, sign: Any) -> None:
    headers = sign(NOW, BODY)
    check(verify, headers)
    for at in range(len(BODY)):
        for bit in range(8):
            with pytest.raises(Unverified):
                check(verify, headers, BODY[:at] + bytes([BODY[at] ^ 1 << bit]) + BODY[at + 1 :])


def test_what_is_signed_beside_the_body_can_not_be_changed() -> None:
    for name, value in (("webhook-id", "msg-2"), ("webhook-timestamp", str(int(NOW) + 1))):
        with pytest.raises(Unverified):
            check(standard(SECRET), {**signed_standard(at=NOW), name: value})
    changed = signed_stripe(at=NOW)["stripe-signature"].replace(f"t={NOW:.0f}", f"t={NOW + 1:.0f}")
    with pytest.raises(Unverified):
        check(stripe(PLAIN), {"stripe-signature": changed})


@pytest.mark.parametrize(
    ("verify", "old", "new"),
    [
        (
            standard(SECRET, OLD_SECRET),
            signed_standard(at=NOW, secret=OLD_SECRET),
            signed_standard(at=NOW, secret=SECRET),
        ),
        (stripe("new", "old"), signed_stripe(at=NOW, secret="old"), signed_stripe(at=NOW, secret="new")),
        (github("new", "old"), signed_github(secret="old"), signed_github(secret="new")),
        (token("new", "old"), {"authorization": "Bearer old"}, {"authorization": "bearer new"}),
    ],
    ids=["standard", "stripe", "github", "token"],
)
def test_old_and_new_secrets_are_taken_while_they_are_rotated(
    verify: Verifier, old: Headers, new: Headers
) -> None:
    check(verify, old)
    check(verify, new)


def test_a_sender_that_rotates_sends_several_signatures() -> None:
    ours, other = signed_standard(at=NOW), signed_standard(at=NOW, secret=OLD_SECRET)
    both = f"v1a,xyz {other['webhook-signature']} {ours['webhook-signature']}"
    check(standard(SECRET), {**ours, "webhook-signature": both})
    first = signed_stripe(at=NOW, secret="other")["stripe-signature"].rpartition(",v0")[0]
    second = signed_stripe(at=NOW)["stripe-signature"].partition(",")[2]
    check(stripe(PLAIN), {"stripe-signature": f"{first}, {second}"})


@pytest.mark.parametrize(
    ("verify", "headers"),
    [
        (standard(SECRET), {**signed_standard(at=NOW), "webhook-signature": ""}),
        (standard(SECRET), {**signed_standard(at=NOW), "webhook-signature": "v1,"}),
        (
            standard(SECRET),
            {
                **signed_standard(at=NOW),
                "webhook-signature": signed_standard(at=NOW)["webhook-signature"].replace("v1,", "v2,"),
            },
        ),
        (standard(SECRET), signed_standard(at=NOW, name="")),
        (standard(SECRET), {**signed_standard(at=NOW), "webhook-timestamp": "1_700_000_000"}),
        (standard(SECRET), {**signed_standard(at=NOW), "webhook-timestamp": "9" * 400}),
        (stripe(PLAIN), {"stripe-signature": ""}),
        (stripe(PLAIN), {"stripe-signature": "v1=00"}),
        (
            stripe(PLAIN),
            {"stripe-signature": signed_stripe(at=NOW)["stripe-signature"] + f",t={NOW:.0f}"},
        ),
        (
            stripe(PLAIN),
            {"stripe-signature": signed_stripe(at=NOW)["stripe-signature"].replace("v1=", "v0=")},
        ),
        (github(PLAIN), {"x-hub-signature-256": ""}),
        (
            github(PLAIN),
            {"x-hub-signature-256": "sha1=" + hmac.new(PLAIN.encode(), BODY, hashlib.sha1).hexdigest()},
        ),
        (token(PLAIN), {"authorization": ""}),
        (token(PLAIN), {"authorization": "Bearer"}),
        (token(PLAIN), {"authorization": f"Basic {PLAIN}"}),
        (token(PLAIN), {"authorization": f"Bearer {PLAIN}x"}),
        (token(PLAIN, header="x-token"), {"x-token": "ä plain secret"}),
    ],
)
def test_what_is_missing_or_malformed_is_refused_and_never_an_error(
    verify: Verifier, headers: Headers
) -> None:
    with pytest.raises(Unverified):
        check(verify, headers)


def test_bytes_can_not_move_between_the_id_and_the_body() -> None:
    """`a.1.` + body, read as id `a.1` with the body's first digits for a time, has the same signed bytes."""
    moved = f"{NOW:.0f}."
    headers = signed_standard(moved.encode() + BODY, name="a", at=NOW)
    forged = {**headers, "webhook-id": f"a.{NOW:.0f}", "webhook-timestamp": f"{NOW:.0f}"}
    with pytest.raises(Unverified, match="full stop"):
        check(standard(SECRET), forged, BODY)


@pytest.mark.parametrize("scheme", [standard, stripe, github, token])
@pytest.mark.parametrize("secrets", [(), ("",), ("  ",), (b"",), (SECRET, ""), (None,)])
def test_an_empty_secret_is_an_error_at_start(scheme: Any, secrets: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"needs a secret|is empty"):
        scheme(*secrets)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_!!!", "whsec_abc"])
def test_a_standard_secret_that_is_not_base64_is_an_error_at_start(secret: str) -> None:
    with pytest.raises(ConfigError, match="base64"):
        standard(secret)


def test_what_each_check_vouches_for() -> None:
    assert check(standard(SECRET), signed_standard(at=NOW)).id == "msg-1"
    assert check(stripe(PLAIN), signed_stripe(at=NOW)).id is None
    assert not check(github(PLAIN), signed_github()).headers
    assert check(token(PLAIN), {"authorization": f"Bearer {PLAIN}"}).headers


def test_secrets_are_not_in_a_verifiers_text() -> None:
    for verify in (standard(SECRET), stripe(PLAIN), github(PLAIN), token(PLAIN)):
        text = f"{verify!r} {verify!s}"
        assert PLAIN not in text
        assert base64.b64decode(SECRET[6:]).decode() not in text


def test_svix_has_headers_of_its_own() -> None:
    headers = {name.replace("webhook-", "svix-"): value for name, value in signed_standard(at=NOW).items()}
    assert check(standard(SECRET, prefix="svix-"), headers).id == "msg-1"


@pytest.mark.parametrize("seconds", [0, -1, 100_000])
def test_a_tolerance_that_protects_from_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="tolerance_seconds"):
        stripe(PLAIN, tolerance_seconds=seconds)
