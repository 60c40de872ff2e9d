"""The tables."""

from django.db import migrations, models

ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Person",
            fields=[
                ("id", ID),
                ("name", models.CharField(max_length=200)),
                ("email", models.EmailField(max_length=254)),
                ("time_zone", models.CharField(default="UTC", max_length=100)),
                ("is_active", models.BooleanField(default=True)),
            ],
        ),
        migrations.CreateModel(
            name="Ticket",
            fields=[
                ("id", ID),
                ("subject", models.CharField(max_length=200)),
                ("state", models.CharField(default="Todo", max_length=50)),
                ("watcher_count", models.IntegerField(default=0)),
                ("watchers", models.ManyToManyField(to="tracker.person")),
            ],
        ),
    ]
