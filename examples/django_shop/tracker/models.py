"""People, and the tickets that they watch."""

from django.db import models


class Person(models.Model):
    name = models.CharField(max_length=200)
    email = models.EmailField()
    time_zone = models.CharField(max_length=100, default="UTC")
    is_active = models.BooleanField(default=True)


class Ticket(models.Model):
    subject = models.CharField(max_length=200)
    state = models.CharField(max_length=50, default="Todo")
    watchers = models.ManyToManyField(Person)
    watcher_count = models.IntegerField(default=0)
