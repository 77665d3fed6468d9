from django.apps import AppConfig


class ProvisioningConfig(AppConfig):
    """The intent to provision a deal's chat, the first attempt, the retry job."""

    name = "provisioning"
    verbose_name = "Deal chat provisioning"
