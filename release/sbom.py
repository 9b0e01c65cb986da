# SPDX-License-Identifier: Apache-2.0
"""The SBOM of a wheel in CycloneDX, which PEP 770 keeps in ``.dist-info/sboms``.

A wheel of rcg holds nothing of others: no library, no bundled script. So its SBOM has one
component, rcg, and names what it requires, which an installer brings.
"""

from __future__ import annotations

import json
import uuid
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from release.files import Failure


def write_sbom(path: Path, metadata: Path) -> None:
    """Write the SBOM of the wheel with this METADATA.

    Raises:
        Failure: It is not valid CycloneDX.
    """
    text = json.dumps(_sbom(metadata), indent=2) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise Failure(f"the SBOM is not valid: {problem}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _sbom(metadata: Path) -> dict[str, Any]:
    fields = HeaderParser().parsestr(metadata.read_text())
    name, version = str(fields["Name"]), str(fields["Version"])
    own = f"pkg:pypi/{name}@{version}"
    required = [Requirement(line) for line in fields.get_all("Requires-Dist", [])]
    always = [each for each in required if each.marker is None]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": version,
                "purl": own,
                "description": str(fields["Summary"]),
                "licenses": [{"license": {"id": str(fields["License-Expression"])}}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{each.name}",
                "name": each.name,
                "purl": f"pkg:pypi/{each.name}",
                "scope": "required",
                "properties": [
                    {"name": "python:requirement", "value": str(each)},
                    {"name": "python:in-this-wheel", "value": "false"},
                ],
            }
            for each in always
        ],
        "dependencies": [
            {"ref": own, "dependsOn": [f"pkg:pypi/{each.name}" for each in always]},
            *({"ref": f"pkg:pypi/{each.name}"} for each in always),
        ],
    }
