"""What crosses the wire, and how it is served: values, codecs, errors, servicers, channels, the typed client."""
