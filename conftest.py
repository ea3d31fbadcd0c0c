"""For every test: a shell that starts a job in the background lets it ignore Ctrl-C, and whatever the job starts, too."""

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # `make test &`: the tests send Ctrl-C to what they run
    signal.signal(signal.SIGINT, signal.default_int_handler)
