// An MCP server made with the official SDK for TypeScript, whose tool tells what it was called with.
// Its first argument is the folder in which the SDK is installed.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(`${process.argv[2]}/`));
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)));
const { Server } = await load("server/index.js");
const { StdioServerTransport } = await load("server/stdio.js");
const { CallToolRequestSchema, ListToolsRequestSchema } = await load("types.js");

const server = new Server({ name: "echo", version: "1" }, { capabilities: { tools: {} } });
server.setRequestHandler(ListToolsRequestSchema, async () => ({
  tools: [{ name: "echo", inputSchema: { type: "object" } }],
}));
server.setRequestHandler(CallToolRequestSchema, async ({ params: { name, arguments: given } }) => ({
  content: [{ type: "text", text: JSON.stringify({ name, arguments: given ?? null }) }],
}));
await server.connect(new StdioServerTransport());
