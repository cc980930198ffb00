from rollcast.services.limits.texts import quoted, quoted_names, shortened, shortened_traceback


def test_a_text_that_is_too_long_keeps_its_beginning_and_a_traceback_its_end():
    for shorten, shown in ((shortened, "abcde…"), (shortened_traceback, "…cdefg")):
        assert shorten("abcdef", 6) == "abcdef"
        assert shorten("abcdefg", 6) == shown


def test_names_are_quoted_and_bounded_in_length_and_number():
    assert quoted("a\n") == repr("a\n")
    assert quoted("x" * 1000) == repr("x" * 159 + "…")
    assert quoted_names(["a", "b"]) == "['a', 'b']"
    assert len(quoted_names("x" * 1000 for _ in range(1000))) < 3000
