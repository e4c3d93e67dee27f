// An MCP client of the official SDK for TypeScript: FOLDER CONFIGURATION CALLS, a line of JSON a
// call. The folder is that in which the SDK is installed.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, configuration, calls] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/`));
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/client/${name}.js`)));
const { Client } = await load("index");
const { StdioClientTransport } = await load("stdio");
const { StreamableHTTPClientTransport } = await load("streamableHttp");

const entry = JSON.parse(readFileSync(configuration, "utf8")).mcpServers.meup;
const client = new Client({ name: "walk", version: "1" });
await client.connect(
  entry.url
    ? new StreamableHTTPClientTransport(new URL(entry.url), { requestInit: { headers: entry.headers } })
    : new StdioClientTransport(entry),
);
const { tools } = await client.listTools();
console.log(JSON.stringify(tools.map((each) => each.name)));
for (const [name, given] of JSON.parse(calls)) {
  let result = await client.callTool({ name, arguments: given });
  // Before it would give up, it is told that the call still waits, and under which id.
  while (result._meta?.["dev.meup/outcome"] === "pending") {
    const id = result._meta["dev.meup/proposal"];
    result = await client.callTool({ name: "meup_result", arguments: { id } });
  }
  console.log(JSON.stringify([result.isError ?? false, result.content[0].text]));
}
await client.close();
