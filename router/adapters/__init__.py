"""Sessions for other frameworks, over a conversation's own: each module needs an optional extra.

| module | for | extra |
|---|---|---|
| `openai_agents` | OpenAI Agents SDK: `Runner.run(agent, text, session=...)` | `openai-agents` |
| `langgraph` | LangGraph: `graph.compile(checkpointer=...)` | `langgraph` |
| `langchain` | LangChain: a chat message history | `langgraph` |

Nothing is imported here: a program pays for, and needs, only the framework it uses.
"""
