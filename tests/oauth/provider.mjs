// A real OpenID provider with one client, registered beforehand. People are whoever they say in its
// login form; `unverified` has an email that nobody has checked. It prints its address first, and
// then reads where its client wants to be answered. With `tokens` it gives refresh tokens that work
// once, access tokens of two seconds, takes new clients, and tells at /me whose a token is.
import http from 'node:http';
import readline from 'node:readline';
import Provider from 'oidc-provider';

const tokens = process.argv[2] === 'tokens';
const server = http.createServer();
let issuer;
server.listen(0, '127.0.0.1', () => {
  issuer = `http://127.0.0.1:${server.address().port}`;
  console.log(issuer);
});
readline.createInterface({ input: process.stdin }).once('line', (redirect) => {
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'gateway',
      client_secret: 'provider-secret-0123456789',
      redirect_uris: [redirect],
      response_types: ['code'],
      grant_types: ['authorization_code', ...(tokens ? ['refresh_token'] : [])],
    }],
    claims: { openid: ['sub'], email: ['email', 'email_verified', 'team', 'boss'] },
    conformIdTokenClaims: process.argv[2] === 'userinfo',
    cookies: { keys: ['one'] },
    features: {
      devInteractions: { enabled: true },
      userinfo: { enabled: true },
      revocation: { enabled: tokens },
      registration: { enabled: tokens },
    },
    ...(tokens && {
      issueRefreshToken: async () => true,
      rotateRefreshToken: true,
      ttl: { AccessToken: 2, Grant: 3600, Session: 3600, Interaction: 3600, RefreshToken: 3600 },
    }),
    pkce: { required: () => true },
    async findAccount(_, id) {
      return {
        accountId: id,
        claims: async () => ({
          sub: id,
          email: `${id}@people.example`,
          email_verified: id !== 'unverified',
          team: 'reader',
          boss: id === 'root',
        }),
      };
    },
  });
  server.on('request', provider.callback());
  console.log('ready');
});
