from rollcast.services.limits.texts import quoted, quoted_names, shortened, shortened_traceback


def test_a_text_that_is_too_long_keeps_its_beginning():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"


def test_a_traceback_that_is_too_long_keeps_its_end():
    assert shortened_traceback("abcdef", 6) == "abcdef"
    assert shortened_traceback("abcdefg", 6) == "…cdefg"


def test_names_are_quoted_and_bounded_in_length_and_number():
    assert quoted("a\n") == repr("a\n")
    assert quoted("x" * 1000) == repr("x" * 159 + "…")
    assert quoted_names(["a", "b"]) == "['a', 'b']"
    assert len(quoted_names("x" * 1000 for _ in range(1000))) < 3000
