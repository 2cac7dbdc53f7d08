/* The words by which a place's first process and its guardian tell each other what is to be waited for; see ready.c. */
#ifndef AGENTENV_READY_H
#define AGENTENV_READY_H

#define TELL_WAKE 'n'
#define TELL_LIMITED 'l'
#define TELL_MEMORY 'm' /* about to end what goes over the limit */
#define TELL_DISK 'd'
#define TELL_NETWORK '1' /* said by slirp4netns itself */
#define TELL_NO_NETWORK 'x'

#endif
