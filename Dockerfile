# The HTTP service of a run: docker build -t linearno . ; mount the run at /run-folder.
FROM python:3.12-slim
WORKDIR /app
RUN useradd --create-home linearno
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# torch from PyPI requires its own version of triton
RUN grep -v '^triton==' constraints.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir -c /tmp/constraints.txt '.[service,mesh]'
USER linearno
EXPOSE 8000
ENTRYPOINT ["linearno", "serve"]
CMD ["/run-folder", "--host", "0.0.0.0"]
