# rbtrace-py for a look into other containers: see docs/containers.md.
#
#   docker build -t rbtrace-py .
#   docker run --rm -it --pid=host --privileged rbtrace-py doctor
FROM debian:trixie-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      gcc libc6-dev python3-bpfcc python3-dev python3-venv
COPY . /src
RUN python3 -m venv /opt/rbtrace-py \
 && /opt/rbtrace-py/bin/pip install --no-cache-dir /src

FROM debian:trixie-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-bpfcc \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/rbtrace-py /opt/rbtrace-py
RUN ln -s /opt/rbtrace-py/bin/rbtrace-py /usr/local/bin/rbtrace-py
ENTRYPOINT ["rbtrace-py"]
