"""Every combination of what a user may choose: each trains and resumes, or is refused at the start in one line."""
