import django.db.models.deletion
import django.db.models.functions.datetime
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('outbox', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='WaitingRoster',
            fields=[
                ('subject_id', models.UUIDField(primary_key=True, serialize=False)),
                ('chat_kind', models.CharField(choices=[('Deal', 'Deal'), ('Lead', 'Lead')], max_length=16)),
                ('version', models.BigIntegerField()),
                ('topic', models.CharField(max_length=249)),
                ('partition', models.IntegerField()),
                ('offset', models.BigIntegerField()),
                ('attempts', models.IntegerField()),
                ('next_attempt_at', models.DateTimeField()),
                ('first_seen_at', models.DateTimeField()),
            ],
            options={
                'verbose_name': 'parked roster',
                'db_table': '"messenger"."parked_rosters"',
                'managed': False,
            },
        ),
        migrations.CreateModel(
            name='MessengerUser',
            fields=[
                ('id', models.UUIDField(primary_key=True, serialize=False)),
                ('display_name', models.CharField(max_length=256)),
                ('updated_at', models.DateTimeField()),
            ],
            options={
                'db_table': '"messenger"."messenger_users"',
            },
        ),
        migrations.CreateModel(
            name='Chat',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('Deal', 'Deal'), ('Lead', 'Lead')], max_length=16)),
                ('status', models.CharField(choices=[('Active', 'Active'), ('Closed', 'Closed')], default='Active', max_length=16)),
                ('title', models.CharField(max_length=256)),
                ('deal_id', models.UUIDField(null=True)),
                ('lead_id', models.UUIDField(null=True)),
                ('project_id', models.UUIDField(null=True)),
                ('tenant_id', models.UUIDField(null=True)),
                ('lead_member_version', models.BigIntegerField(null=True)),
                ('deal_member_version', models.BigIntegerField(null=True)),
                ('last_seq', models.BigIntegerField(db_default=0)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('closed_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': '"messenger"."chats"',
                'indexes': [models.Index(fields=['-created_at'], name='ix_chats_created_at')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('deal_id', None), _negated=True), fields=('deal_id',), name='ux_chats_deal_id'), models.UniqueConstraint(condition=models.Q(('lead_id', None), _negated=True), fields=('lead_id',), name='ux_chats_lead_id'), models.CheckConstraint(condition=models.Q(models.Q(('deal_id__isnull', False), ('kind', 'Deal'), ('lead_id__isnull', True), ('lead_member_version__isnull', True)), models.Q(('deal_id__isnull', True), ('deal_member_version__isnull', True), ('kind', 'Lead'), ('lead_id__isnull', False)), _connector='OR'), name='ck_chats_kind'), models.CheckConstraint(condition=models.Q(('status__in', ['Active', 'Closed'])), name='ck_chats_status'), models.CheckConstraint(condition=models.Q(models.Q(('closed_at', None), ('status', 'Active')), models.Q(('closed_at__isnull', False), ('status', 'Closed')), _connector='OR'), name='ck_chats_closed_at')],
            },
        ),
        migrations.CreateModel(
            name='ParkedRoster',
            fields=[
                ('pk', models.CompositePrimaryKey('chat_kind', 'subject_id', blank=True, editable=False, primary_key=True, serialize=False)),
                ('chat_kind', models.CharField(choices=[('Deal', 'Deal'), ('Lead', 'Lead')], max_length=16)),
                ('subject_id', models.UUIDField()),
                ('version', models.BigIntegerField()),
                ('topic', models.CharField(max_length=249)),
                ('partition', models.IntegerField()),
                ('offset', models.BigIntegerField()),
                ('key', models.BinaryField(null=True)),
                ('value', models.BinaryField()),
                ('headers', models.JSONField(default=list)),
                ('attempts', models.IntegerField(db_default=0)),
                ('next_attempt_at', models.DateTimeField()),
                ('first_seen_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': '"messenger"."parked_rosters"',
                'indexes': [models.Index(fields=['chat_kind', 'next_attempt_at'], name='ix_parked_rosters_due')],
            },
        ),
        migrations.CreateModel(
            name='ChatEvent',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('seq', models.BigIntegerField()),
                ('type', models.CharField(choices=[('LeadChatProvisioned', 'LeadChatProvisioned'), ('DealChatProvisioned', 'DealChatProvisioned'), ('ParticipantJoined', 'ParticipantJoined'), ('ParticipantLeft', 'ParticipantLeft'), ('ParticipantRoleChanged', 'ParticipantRoleChanged'), ('ChatClosed', 'ChatClosed')], max_length=32)),
                ('user_id', models.UUIDField(null=True)),
                ('role', models.CharField(choices=[('Executor', 'Executor'), ('Responsible', 'Responsible'), ('CoAgent', 'CoAgent'), ('Assistant', 'Assistant'), ('Lawyer', 'Lawyer'), ('InvestorPrimary', 'InvestorPrimary'), ('InvestorSecondary', 'InvestorSecondary'), ('Guest', 'Guest')], max_length=32, null=True)),
                ('previous_role', models.CharField(choices=[('Executor', 'Executor'), ('Responsible', 'Responsible'), ('CoAgent', 'CoAgent'), ('Assistant', 'Assistant'), ('Lawyer', 'Lawyer'), ('InvestorPrimary', 'InvestorPrimary'), ('InvestorSecondary', 'InvestorSecondary'), ('Guest', 'Guest')], max_length=32, null=True)),
                ('occurred_at', models.DateTimeField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('chat', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='events', to='chats.chat')),
            ],
            options={
                'db_table': '"messenger"."chat_events"',
                'constraints': [models.UniqueConstraint(fields=('chat', 'seq'), name='ux_chat_events_chat_seq'), models.CheckConstraint(condition=models.Q(('type__in', ['LeadChatProvisioned', 'DealChatProvisioned', 'ParticipantJoined', 'ParticipantLeft', 'ParticipantRoleChanged', 'ChatClosed'])), name='ck_chat_events_type')],
            },
        ),
        migrations.CreateModel(
            name='Participant',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ('user_id', models.UUIDField()),
                ('role', models.CharField(choices=[('Executor', 'Executor'), ('Responsible', 'Responsible'), ('CoAgent', 'CoAgent'), ('Assistant', 'Assistant'), ('Lawyer', 'Lawyer'), ('InvestorPrimary', 'InvestorPrimary'), ('InvestorSecondary', 'InvestorSecondary'), ('Guest', 'Guest')], max_length=32)),
                ('role_raw', models.CharField(max_length=64, null=True)),
                ('joined_at', models.DateTimeField()),
                ('removed_at', models.DateTimeField(null=True)),
                ('chat', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='participants', to='chats.chat')),
            ],
            options={
                'db_table': '"messenger"."participants"',
                'indexes': [models.Index(fields=['user_id', 'chat'], name='ix_participants_user')],
                'constraints': [models.UniqueConstraint(fields=('chat', 'user_id'), name='ux_participants_chat_user'), models.CheckConstraint(condition=models.Q(('role__in', ['Executor', 'Responsible', 'CoAgent', 'Assistant', 'Lawyer', 'InvestorPrimary', 'InvestorSecondary', 'Guest'])), name='ck_participants_role')],
            },
        ),
    ]
