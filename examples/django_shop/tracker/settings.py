"""As little as Django needs."""

import os

from psycopg.conninfo import conninfo_to_dict

dsn = conninfo_to_dict(os.environ["PIPELINE_DATABASE_URL"])

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": dsn["dbname"],
        "USER": dsn.get("user", ""),
        "PASSWORD": dsn.get("password", ""),
        "HOST": dsn.get("host", ""),
        "PORT": dsn.get("port", ""),
    }
}
INSTALLED_APPS = ["tracker"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "only for the example"
USE_TZ = True
