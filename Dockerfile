# The image of the server. In the pods of tasks it is also the init container, which brings the agent and its
# interpreter, and the helper container, which moves data. Build it in the root of the repository.
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv
COPY pyproject.toml constraints.txt README.md LICENSE /source/
COPY src /source/src
RUN python3 -m venv /opt/oarlock/venv \
    && /opt/oarlock/venv/bin/pip install --no-cache-dir --no-compile -c /source/constraints.txt "/source[kubernetes,s3,gs]" \
    && /opt/oarlock/venv/bin/pip uninstall --yes pip setuptools
COPY deploy/images/runtime.py /source/
RUN /opt/oarlock/venv/bin/python /source/runtime.py /opt/oarlock/runtime

FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/*
COPY --from=build /opt/oarlock /opt/oarlock
RUN install --directory --owner=10001 --group=10001 /var/lib/oarlock
ENV OARLOCK_HOME=/var/lib/oarlock PATH=/opt/oarlock/venv/bin:/usr/local/bin:/usr/bin:/bin
USER 10001:10001
ENTRYPOINT ["oarlock"]
CMD ["up", "--backend", "kubernetes"]
