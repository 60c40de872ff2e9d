"""The demo: a made-up project tracker whose people get real mail, in an inbox of its own."""
