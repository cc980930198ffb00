"""Kinds of addresses that several settings are, checked as they are read."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from rollcast.services.address import parse_address, parse_listening_address, parse_web_address, split_addresses
from rollcast.services.errors import ConfigurationError


def _checked(parse: Callable[[str], object]) -> AfterValidator:
    def check(text: str) -> str:
        try:
            parse(text)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error  # pydantic turns it into its own
        return text

    return AfterValidator(check)


# host:port or unix:/path, of a server to be
ListeningAddress: TypeAlias = Annotated[str, _checked(parse_listening_address)]
# host:port, of a page to be
WebAddress: TypeAlias = Annotated[str, _checked(parse_web_address)]
# host:port, unix:/path or file:/path
ServerAddress: TypeAlias = Annotated[str, _checked(parse_address)]
# several ways to one server, or several servers, with commas between them
ServerAddresses: TypeAlias = Annotated[str, _checked(split_addresses)]
