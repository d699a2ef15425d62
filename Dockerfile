# docker build -t ddpdoctor .                                   lint, analyze and report, without torch
# docker build -t ddpdoctor:torch --build-arg EXTRAS=torch .    also check and run
# docker run --rm -v "$PWD:/work:ro" ddpdoctor lint .
FROM python:3.11-slim-bookworm AS build
ARG EXTRAS=
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY ddpdoctor ddpdoctor
COPY checks checks
RUN python -m venv /opt/ddpdoctor
RUN /opt/ddpdoctor/bin/python -m pip install --no-cache-dir ".${EXTRAS:+[$EXTRAS]}"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/ddpdoctor /opt/ddpdoctor
ENV PATH=/opt/ddpdoctor/bin:$PATH HOME=/tmp
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["ddpdoctor"]
CMD ["--help"]
