"""Who may change who may do what."""

from __future__ import annotations

import pytest

from gateway.config.file import parse_settings
from gateway.errors import Refused
from gateway.model import Principal
from gateway.policy.rights import refuse_change

HASH = "ab" * 32
ANN = f'[principals.ann]\ntoken_sha256 = "{HASH}"\nadmin = true\norganization = "acme"\n'
NEW = f'[principals.new]\ntoken_sha256 = "{HASH[::-1]}"\norganization = "acme"\n'
JWT = 'mode = "jwt"\nissuer = "https://id.example"\naudience = "us"\njwks_file = "keys.json"\n'
OIDC = 'sign_in = "oidc"\nissuer = "https://id.example"\nclient_id = "us"\n'
ASSERTED = (
    '[auth.oauth.enterprise]\nissuer = "https://id.example"\njwks_url = "https://id.example"\n'
)


@pytest.mark.parametrize(
    ("auth", "claimed"),
    [
        ('mode = "tokens"\n', False),
        ('mode = "oauth"\n', False),
        (JWT, True),
        (f'mode = "oauth"\n[auth.oauth]\n{OIDC}', True),
        (f'mode = "oauth"\n{ASSERTED}', True),
    ],
)
def test_no_organizations_admin_takes_a_name_that_a_provider_may_give_to_a_person(
    auth: str, claimed: bool
) -> None:
    before, after = (parse_settings(f"{ANN}{new}[auth]\n{auth}".encode()) for new in ("", NEW))
    ann = Principal("ann", admin=True, organization="acme")
    if not claimed:
        refuse_change(ann, "principal", "new", before, after)
        return
    with pytest.raises(Refused, match="known by the identity provider"):
        refuse_change(ann, "principal", "new", before, after)
