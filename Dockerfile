# syntax=docker/dockerfile:1
FROM python:3.13-slim-bookworm AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
COPY requirements.lock /tmp/requirements.lock
RUN /opt/venv/bin/pip install --require-hashes --only-binary=:all: -r /tmp/requirements.lock


FROM python:3.13-slim-bookworm

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin messenger
COPY --from=build /opt/venv /opt/venv
WORKDIR /srv/messenger
# The demo and the tests stay out (.dockerignore): production runs nothing of them.
COPY manage.py ./
COPY messenger ./messenger
COPY outbox ./outbox
COPY chats ./chats
COPY provisioning ./provisioning
RUN python -m compileall -q messenger outbox chats provisioning

USER 10001
EXPOSE 8000 9100
# The exec form: SIGTERM reaches the process itself, which stops in order and ends with 0.
ENTRYPOINT ["python", "manage.py"]
CMD ["help"]
