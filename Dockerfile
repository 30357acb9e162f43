# The image of the server. In the pods of tasks it is also the init container, which brings the agent and its
# interpreter, and the helper container, which moves data. Build it in the root of the repository; deploy/images/build
# builds it so that the same content has the same digest.
#
# Bytecode is compiled without the times of its sources, which a reproducible image sets to one date: Python would
# compile everything anew at each start.
FROM debian:bookworm-slim AS build
ARG SNAPSHOT
ENV PYTHONHASHSEED=0
COPY deploy/images/packages.sh /tmp/
RUN sh /tmp/packages.sh "$SNAPSHOT" python3 python3-venv
COPY pyproject.toml constraints.txt README.md LICENSE /source/
COPY src /source/src
RUN python3 -m venv /opt/oarlock/venv \
    && PIP_CONSTRAINT=/source/constraints.txt \
       /opt/oarlock/venv/bin/pip install --no-cache-dir --no-compile "/source[kubernetes,regex,s3,gs]" \
    && /opt/oarlock/venv/bin/pip uninstall --yes pip setuptools
COPY deploy/images/runtime.py deploy/images/slim.sh /source/
# botocore describes each service of AWS: 24 MB, of which s3fs reads these.
RUN /opt/oarlock/venv/bin/python /source/runtime.py /opt/oarlock/runtime \
    && find /opt/oarlock/venv/lib/python3*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
       ! -name s3 ! -name sts ! -name 'sso*' -exec rm -rf {} + \
    && sh /source/slim.sh /opt/oarlock/venv

FROM debian:bookworm-slim
ARG SNAPSHOT
ENV PYTHONHASHSEED=0
COPY deploy/images/packages.sh deploy/images/slim.sh /tmp/
RUN sh /tmp/packages.sh "$SNAPSHOT" ca-certificates openssl python3 \
    && sh /tmp/slim.sh /usr/lib/python3.11
COPY --from=build /opt/oarlock /opt/oarlock
RUN install --directory --owner=10001 --group=10001 /var/lib/oarlock
ENV OARLOCK_HOME=/var/lib/oarlock PATH=/opt/oarlock/venv/bin:/usr/local/bin:/usr/bin:/bin USER=oarlock
USER 10001:10001
ENTRYPOINT ["oarlock"]
CMD ["up", "--backend", "kubernetes"]
