"""Translation of an object store's errors into Drainmark's errors, without any credentials."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from drainmark.jobs.errors import DrainmarkError, ObjectChanged, ObjectMissing, StoreRefused, StoreUnavailable

AGAIN = "a new attempt starts by itself; look at the store and s3_endpoint_url if it stays so"
_MISSING = frozenset({"404", "NoSuchKey", "NoSuchVersion", "NotFound"})
_CHANGED = frozenset({"412", "PreconditionFailed"})
_PASSING = frozenset({"ConditionalRequestConflict", "RequestTimeout", "SlowDown", "ThrottlingException"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_MEND = {
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), "create the bucket, or give another address"),
    **dict.fromkeys(
        ("301", "PermanentRedirect", "AuthorizationHeaderMalformed"), "the bucket is in another region: set s3_region"
    ),
}
_RENEW = "renew the credentials; a new attempt starts by itself"
_ALLOW = "reading needs s3:ListBucket and s3:GetObject on the bucket; look at s3_profile"
_STATUS = re.compile(
    r"status code (\d{3})|\b(\d{3}) (?:Forbidden|Not Found|Bad Request|Moved|Unauthorized)|code: (\d{3})"
)
_UNNAMED = re.compile(r"InvalidPath|Could not parse path")
_NOISE = re.compile(r"\x1b\[[0-9;]*m|\s*↳\s*|\s+")  # deltalake prints its chain of causes as a coloured tree
_SECRETS = (
    (re.compile(r"(?<=://)[^/@\s'\"]+@"), "***@"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), "***"),
    (
        re.compile(r"(?i)\b(X-Amz-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|Signature|sig)=[^&\s'\"]+"),
        r"\1=***",
    ),
)


def translation(where: str, error: Exception, redact: Callable[[str], str]) -> DrainmarkError | None:
    """Return Drainmark's error for an error of botocore or of the disk; None for any other error.

    Args:
        where: the action and its object, in the infinitive.
        redact: removes credentials from a text.
    """
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    if isinstance(error, ClientError):
        return _answered(where, error.response, redact)
    told = f"cannot {where}: {type(error).__name__}: {redact(str(error))}"
    if isinstance(error, HTTPClientError | ResponseParserError | HTTPError) or _is_passing(error):
        return StoreUnavailable(told, remedy=AGAIN)
    if isinstance(error, BotoCoreError | ValueError):
        return StoreRefused(told, remedy="look at s3_profile, s3_region, s3_endpoint_url and the AWS_* variables")
    if isinstance(error, OSError):
        return StoreUnavailable(told, remedy="make room where DRAINMARK_HOME is; a new attempt starts by itself")
    return None


def failure(where: str, error: BaseException, redact: Callable[[str], str], remedy: str = _ALLOW) -> DrainmarkError:
    """Return Drainmark's error for one of the common client or of `deltalake`, which tell it in the same words.

    Args:
        where: the action and its object, in the infinitive.
        remedy: for a refusal that its code does not explain.
    """
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = redact(_NOISE.sub(" ", said))[:400]
    told, found = f"cannot {where}: {text}", _STATUS.search(text)
    status = next((int(each) for each in found.groups() if each), 0) if found else 0
    if any(code in text for code in _EXPIRED):
        return StoreUnavailable(told, remedy=_RENEW)
    for code in re.findall(r"[A-Za-z]\w+", text) if status != 301 else ["301"]:
        if code in _MEND:
            return StoreRefused(told, remedy=_MEND[code])
    if _UNNAMED.search(text):
        return StoreRefused(told, remedy="an object there has a key that cannot be named: move or delete it")
    if status == 501 or (300 <= status < 500 and status not in (408, 409, 429)):
        return StoreRefused(told, remedy=remedy)
    return StoreUnavailable(told, remedy=AGAIN)


def code_of(answer: Mapping[str, Any]) -> str:
    """Return the error code of an answer that botocore raised as an error."""
    return str(answer.get("Error", {}).get("Code", ""))


def redacted(text: str) -> str:
    """Return a text without user info of addresses, access keys and signatures."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _answered(where: str, answer: Mapping[str, Any], redact: Callable[[str], str]) -> DrainmarkError:
    code = code_of(answer)
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = redact(f"cannot {where}: {code} {answer.get('Error', {}).get('Message', '')}".rstrip())
    if code in _MISSING:
        return ObjectMissing(text)
    if code in _CHANGED:
        return ObjectChanged(text)
    if code in _EXPIRED:
        return StoreUnavailable(text, remedy=_RENEW)
    if code in _PASSING or status == 429 or (status >= 500 and code != "NotImplemented"):
        return StoreUnavailable(text, remedy=AGAIN)
    return StoreRefused(text, remedy=_MEND.get(code, _ALLOW))


def _is_passing(error: Exception) -> bool:
    """Say whether an error of botocore is temporary, and not caused by settings."""
    from botocore import exceptions

    return isinstance(
        error,
        exceptions.ConnectionError
        | exceptions.IncompleteReadError
        | exceptions.CredentialRetrievalError
        | exceptions.FlexibleChecksumError
        | exceptions.UnauthorizedSSOTokenError
        | exceptions.TokenRetrievalError,
    )
