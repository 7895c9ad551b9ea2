"""OpenAI's own specification: what of it the tests need, and a check of captured JSON against it.

`python -m support.api.openai_spec openapi.json tests/openai/chat.json NAME...` copies the
components with these names, and those they refer to, out of the whole specification
(tests/openai/LICENSE).
"""

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

COPIES = Path(__file__).parents[2] / "openai"
# Prose and samples: a validator reads neither.
LEFT_OUT = ("description", "x-oaiMeta", "x-stainless-const")


def assert_valid(value: Any, component: str, copy: str) -> None:
    """Fail unless `value` is what the component of tests/openai/`copy`.json says."""
    errors = [
        f"{error.json_path}: {error.message[:300]}"
        for error in _validator(component, copy).iter_errors(value)
    ]
    assert not errors, (component, errors)


@cache
def _validator(component: str, copy: str) -> Draft202012Validator:
    copied = json.loads((COPIES / f"{copy}.json").read_text())
    assert component in copied["components"]["schemas"]
    reference = {"$ref": f"#/components/schemas/{component}"}
    return Draft202012Validator({**_with_null(copied), **reference})


def _with_null(schema: Any) -> Any:
    """`nullable` as the specification means it: JSON Schema does not know the word."""
    if isinstance(schema, list):
        return [_with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _with_null(value) for key, value in schema.items()}
    if changed.pop("nullable", False) is True:
        return {"anyOf": [changed, {"type": "null"}]}
    return changed


def components_of(specification: Any, names: Iterable[str]) -> dict[str, Any]:
    """The components with these names and all that they refer to, without their prose."""
    schemas = specification["components"]["schemas"]
    found: dict[str, Any] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = _bare(schemas[name])
            wanted += _referred(found[name])
    return dict(sorted(found.items()))


def _bare(schema: Any, is_properties: bool = False) -> Any:
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _bare(value, is_properties=key == "properties" and not is_properties)
        for key, value in schema.items()
        if is_properties or key not in LEFT_OUT
    }


def _referred(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _referred(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _referred(value)


def main(source: str, target: str, *names: str) -> None:
    """Write a copy."""
    specification = json.loads(Path(source).read_text())
    copied = {
        "info": {
            "title": specification["info"]["title"],
            "version": specification["info"]["version"],
            "license": specification["info"]["license"],
        },
        "components": {"schemas": components_of(specification, names)},
    }
    Path(target).write_text(json.dumps(copied, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
