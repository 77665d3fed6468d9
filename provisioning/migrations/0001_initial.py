import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('chats', '0001_initial'),
        ('outbox', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='DealChatProvision',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ('deal_id', models.UUIDField()),
                ('chat_id', models.UUIDField(null=True)),
                ('title', models.CharField(max_length=256)),
                ('project_id', models.UUIDField(null=True)),
                ('deal_tenant_id', models.UUIDField(null=True)),
                ('status', models.CharField(choices=[('Provisioning', 'Provisioning'), ('Ready', 'Ready'), ('Failed', 'Failed')], db_default='Provisioning', max_length=16)),
                ('attempts', models.IntegerField(db_default=0)),
                ('next_attempt_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('last_error', models.CharField(max_length=512, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('row_version', models.IntegerField(db_default=0)),
            ],
            options={
                'db_table': '"messenger"."deal_chat_provisions"',
                'permissions': [('reenqueue_dealchatprovision', 'Can re-enqueue deal chat provisions')],
                'indexes': [models.Index(fields=['status', 'next_attempt_at'], name='ix_dcp_due'), models.Index(fields=['deal_tenant_id'], name='ix_dcp_tenant')],
                'constraints': [models.UniqueConstraint(fields=('deal_id',), name='ux_dcp_deal'), models.CheckConstraint(condition=models.Q(('attempts__gte', 0)), name='ck_dcp_attempts'), models.CheckConstraint(condition=models.Q(('status__in', ['Provisioning', 'Ready', 'Failed'])), name='ck_dcp_status')],
            },
        ),
        migrations.CreateModel(
            name='DealChatProvisionMember',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('user_id', models.UUIDField()),
                ('role', models.CharField(choices=[('Executor', 'Executor'), ('Responsible', 'Responsible'), ('CoAgent', 'CoAgent'), ('Assistant', 'Assistant'), ('Lawyer', 'Lawyer'), ('InvestorPrimary', 'InvestorPrimary'), ('InvestorSecondary', 'InvestorSecondary'), ('Guest', 'Guest')], max_length=32)),
                ('role_raw', models.CharField(max_length=64, null=True)),
                ('provision', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='members', to='provisioning.dealchatprovision')),
            ],
            options={
                'db_table': '"messenger"."deal_chat_provision_members"',
                'constraints': [models.UniqueConstraint(fields=('provision', 'user_id'), name='ux_dcpm_provision_user')],
            },
        ),
    ]
