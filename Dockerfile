# The HTTP service of a run: docker build -t linearno . ; mount the run at /run-folder.
FROM python:3.12-slim
WORKDIR /app
RUN useradd --create-home linearno
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt '.[service,mesh]'
USER linearno
EXPOSE 8000
ENTRYPOINT ["linearno", "serve"]
CMD ["/run-folder", "--host", "0.0.0.0"]
