"""Runs of several turns: each carries what was said before it."""

from tests.bench.fake_server import Call
from tests.bench.small_runs import Bench, bodies, complete


class TestConversations:
    def test_each_turn_carries_what_was_said(self, bench: Bench) -> None:
        async def answer(call: Call) -> None:
            await call.head()
            number = call.asked.number
            await call.event({"choices": [{"text": "x", "token_ids": [7000 + number], "finish_reason": None}]})
            await call.event({"choices": [{"text": "y", "token_ids": [8000 + number], "finish_reason": "length"}]})
            await call.event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
            await call.end()

        settings = dict(dataset_name="sessions", num_prompts=1, num_turns=3, turn_input_len=2)
        code, table, _, server = bench(answer, **settings)
        assert (code, table["Successful requests"]) == (0, "3")
        first, second, third = (body["prompt"] for body in bodies(server))
        assert len(first) == 5
        assert second[:5] == first
        assert second[5:7] == [7001, 8001]
        assert third[:9] == second
        assert third[9:11] == [7002, 8002]
        assert len(third) == 13
        assert all(body["return_token_ids"] for body in bodies(server))

    def test_a_server_that_keeps_its_token_ids(self, bench: Bench) -> None:
        _, _, _, server = bench(complete, dataset_name="sessions", num_prompts=1, num_turns=2, turn_input_len=2)
        first, second = (body["prompt"] for body in bodies(server))
        assert second[:5] == first
        assert len(second) == 5 + 4 + 2

    def test_turns_take_turns(self, bench: Bench) -> None:
        """With one place, every session has had its first turn before any has its second."""
        _, _, _, server = bench(
            complete, dataset_name="sessions", num_prompts=3, num_turns=2, turn_input_len=2, max_concurrency=1
        )
        assert [len(body["prompt"]) for body in bodies(server)] == [5, 5, 5, 11, 11, 11]

    def test_a_failure_ends_its_session_only(self, bench: Bench) -> None:
        async def answer(call: Call) -> None:
            await (call.json(500, "no") if call.asked.number == 2 else call.completion())

        code, table, _, _ = bench(
            answer, dataset_name="sessions", num_prompts=2, num_turns=3, turn_input_len=2, max_concurrency=1
        )
        assert code == 1
        assert (table["Successful requests"], table["HTTP 500"], table["not sent"]) == ("3", "1", "2")

    def test_chats_with_tools(self, bench: Bench) -> None:
        async def answer(call: Call) -> None:
            await call.head()
            await call.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            if call.asked.number == 1:
                function = {"name": "look", "arguments": '{"at": "it"}'}
                await call.event(
                    {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": function}]}}]}
                )
            else:
                await call.event({"choices": [{"delta": {"content": "seen"}}]})
            await call.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
            await call.end()

        settings = dict(dataset_name="tools", backend="openai-chat", num_prompts=1, num_turns=3)
        code, table, _, server = bench(answer, **settings)
        assert (code, table["Successful requests"]) == (0, "3")
        assert {asked.path for asked in server.asked} == {"/v1/chat/completions"}
        _, second, third = (body["messages"] for body in bodies(server))
        assert [message["role"] for message in second] == ["user", "assistant", "tool", "user"]
        assert second[1]["tool_calls"] == [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
        ]
        assert second[2]["tool_call_id"] == "c"
        assert [message["role"] for message in third] == ["user", "assistant", "tool", "user", "assistant", "user"]
        assert third[4] == {"role": "assistant", "content": "seen"}
        assert all(body["tools"] for body in bodies(server))
