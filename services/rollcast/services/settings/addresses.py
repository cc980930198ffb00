"""Defines the types of addresses in settings. Each type checks its values."""

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
            raise ValueError(str(error)) from error  # pydantic converts it to a ValidationError
        return text

    return AfterValidator(check)


# host:port or unix:/path, at which a server listens
ListeningAddress: TypeAlias = Annotated[str, _checked(parse_listening_address)]
# host:port, at which an HTTP server listens
WebAddress: TypeAlias = Annotated[str, _checked(parse_web_address)]
# host:port, unix:/path or file:/path
ServerAddress: TypeAlias = Annotated[str, _checked(parse_address)]
# several addresses of one server, or of several servers, separated by commas
ServerAddresses: TypeAlias = Annotated[str, _checked(split_addresses)]
