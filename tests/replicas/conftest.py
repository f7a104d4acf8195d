from tests.engine_client.conftest import gate as gate
