import django.db.models.functions.datetime
import uuid
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        # Every table of the service lives in this schema; Django's own stay where the role's search_path says, which
        # for a role named messenger is this schema: they keep it alive on the way back.
        migrations.RunSQL(
            "CREATE SCHEMA IF NOT EXISTS messenger",
            "DO $$ BEGIN DROP SCHEMA IF EXISTS messenger; EXCEPTION WHEN dependent_objects_still_exist THEN NULL; END $$",
        ),
        migrations.CreateModel(
            name='DeadLetter',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('consumer_group', models.CharField(max_length=255)),
                ('topic', models.CharField(max_length=249)),
                ('partition', models.IntegerField()),
                ('offset', models.BigIntegerField()),
                ('key', models.BinaryField(null=True)),
                ('value', models.BinaryField(null=True)),
                ('headers', models.JSONField(default=list)),
                ('error_code', models.CharField(max_length=64)),
                ('error_detail', models.CharField(max_length=512)),
                ('first_seen_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('resolved_at', models.DateTimeField(null=True)),
                ('resolution', models.CharField(max_length=64, null=True)),
                ('resolved_by', models.CharField(max_length=150, null=True)),
            ],
            options={
                'db_table': '"messenger"."dead_letters"',
                'permissions': [('resolve_deadletter', 'Can resolve dead letters')],
                'indexes': [models.Index(condition=models.Q(('resolved_at', None)), fields=['consumer_group', 'first_seen_at'], name='ix_dead_letters_open')],
                'constraints': [models.UniqueConstraint(fields=('consumer_group', 'topic', 'partition', 'offset'), name='ux_dead_letters_source')],
            },
        ),
        migrations.CreateModel(
            name='OutboxMessage',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('message_id', models.UUIDField(default=uuid.uuid4)),
                ('topic', models.CharField(max_length=249)),
                ('key', models.BinaryField(null=True)),
                ('value', models.BinaryField(null=True)),
                ('headers', models.JSONField(default=list)),
                ('aggregate_type', models.CharField(max_length=64)),
                ('aggregate_id', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('published_at', models.DateTimeField(null=True)),
                ('attempts', models.IntegerField(db_default=0)),
                ('last_error', models.CharField(max_length=512, null=True)),
                ('parked_at', models.DateTimeField(null=True)),
            ],
            options={
                'db_table': '"messenger"."outbox_messages"',
                'permissions': [('publish_again_outboxmessage', 'Can publish parked outbox messages again')],
                'indexes': [models.Index(condition=models.Q(('published_at', None)), fields=['id'], name='ix_outbox_unpublished'), models.Index(condition=models.Q(('parked_at__isnull', False), ('published_at', None)), fields=['topic', 'key'], name='ix_outbox_parked'), models.Index(fields=['published_at'], name='ix_outbox_published_at'), models.Index(fields=['aggregate_id'], name='ix_outbox_aggregate')],
                'constraints': [models.UniqueConstraint(fields=('message_id',), name='ux_outbox_message_id'), models.CheckConstraint(condition=models.Q(('attempts__gte', 0)), name='ck_outbox_attempts')],
            },
        ),
        migrations.CreateModel(
            name='ProcessedMessage',
            fields=[
                ('key', models.CharField(max_length=200, primary_key=True, serialize=False)),
                ('digest', models.BinaryField(null=True)),
                ('processed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': '"messenger"."processed_messages"',
                'indexes': [models.Index(fields=['processed_at'], name='ix_processed_at')],
            },
        ),
    ]
